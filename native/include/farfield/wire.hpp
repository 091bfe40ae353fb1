// Fragments and credits into bytes, announcements and columns out of bytes: farfield/v1 by hand, as codec.py writes it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farfield/columns.hpp"
#include "farfield/snapshot.hpp"
#include "farfield/spec.hpp"

namespace farfield {

constexpr std::size_t LIMIT = std::size_t{64} << 20;  // bytes of one payload

/// The head of a fragment; types.py explains each.
struct Fragment {
  std::string run;
  std::string stream;  // 32 hexadecimal digits
  std::uint64_t seq = 0, version = 0, attempt = 0;
  std::string spec;  // 64 hexadecimal digits
  std::uint64_t decision = 0;
  std::string policy = "main", actor, source;
};

/// One column of a payload that is being written; the data stay where they are until then.
struct Column {
  std::string name;
  Dtype dtype = Dtype::None;
  Shape shape;
  const void* data = nullptr;
};

/// A reward for an earlier decision.
struct Credit {
  std::string run, stream;
  std::uint64_t n = 0;
  double reward = 0;
  bool set = false;  // else it is added
  std::string id;
};

/// A version, tensors that a follower may lack, and what is settled.
struct Announcement {
  std::string version_json;
  Version version;
  bool full = false;
  Columns tensors;                                             // checked against the manifest's hashes
  std::vector<std::pair<std::string, std::uint64_t>> settled;  // stream in hexadecimal digits, fragments
};

/// Writes a fragment, each column copied once; SpecError above the limit.
std::string encode(const Fragment& fragment, const std::vector<Column>& columns, std::size_t limit = LIMIT);
/// Writes a late reward.
std::string encode(const Credit& credit);
/// Says what a payload claims to be: "Fragment", "Credit", "Announcement", "Heartbeat", "Dead", or nothing.
std::string kind_of(std::string_view payload);

/// Reads a version; CorruptError where a byte is not what it should be, SpecError for another schema.
Announcement decode_announcement(std::string_view payload, std::size_t limit = LIMIT);
/// Reads a fragment back, for tests and tools.
std::pair<Fragment, Columns> decode_fragment(std::string_view payload, std::size_t limit = LIMIT);
/// Reads a late reward back.
Credit decode_credit(std::string_view payload);

/// One Column message of proto/farfield/v1: for calls that carry columns outside of payloads.
std::string encode_column(const Column& column);
std::pair<std::string, Array> decode_column(std::string_view message);
/// Makes a column from the parts of a message that somebody else parsed, checking that they fit.
Array read_column(const std::string& name, int dtype, const std::uint64_t* shape, std::size_t axes,
                  std::string_view data);

/// The tensors that a follower holds, and the version that they make.
class Follower {
 public:
  /// Takes what came; gives a snapshot when all that acting needs is there with the manifest's hashes, else null:
  /// then ask again for a full announcement.
  std::shared_ptr<const Snapshot> take(const Announcement& announcement);
  /// Tensor -> SHA-256 (32 bytes) of what is held, for VersionsRequest.have.
  std::map<std::string, std::string> have() const;

 private:
  struct Held {
    Array array;
    std::string sha256;  // hexadecimal digits
  };
  std::map<std::string, Held> held_;
};

}  // namespace farfield
