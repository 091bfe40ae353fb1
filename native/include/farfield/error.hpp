// What the core raises on purpose: a kind, and a text that names the thing, what was expected, what came, and the cure.
#pragma once

#include <stdexcept>
#include <string>

namespace farfield {

/// One exception for all; its kind says which class of farfield/errors.py it is in Python.
class Error : public std::runtime_error {
 public:
  enum class Kind { Spec, Missing, Corrupt, Config, Full, Conflict };

  Error(Kind kind, const std::string& text) : std::runtime_error(text), kind(kind) {}

  /// The class in Python and on the wire, such as "SpecError".
  const char* name() const noexcept {
    switch (kind) {
      case Kind::Spec: return "SpecError";
      case Kind::Missing: return "MissingError";
      case Kind::Corrupt: return "CorruptError";
      case Kind::Config: return "ConfigError";
      case Kind::Full: return "FullError";
      case Kind::Conflict: return "ConflictError";
    }
    return "FarfieldError";
  }

  const Kind kind;
};

[[noreturn]] inline void spec_error(const std::string& text) { throw Error(Error::Kind::Spec, text); }
[[noreturn]] inline void missing_error(const std::string& text) { throw Error(Error::Kind::Missing, text); }
[[noreturn]] inline void corrupt_error(const std::string& text) { throw Error(Error::Kind::Corrupt, text); }
[[noreturn]] inline void config_error(const std::string& text) { throw Error(Error::Kind::Config, text); }

}  // namespace farfield
