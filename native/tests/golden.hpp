// The golden file that Python wrote, as columns.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "farfield/decide.hpp"
#include "farfield/error.hpp"
#include "farfield/json.hpp"
#include "farfield/wire.hpp"

namespace farfield {

inline std::string read_file(const std::string& name) {
  std::ifstream file(std::string(GOLDEN) + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline const Json& golden() {
  static const Json read = Json::parse(read_file("native.json"));
  return read;
}

inline Array array_of(const Json& json) {
  Array array(dtype_of(json.at("dtype").text()), read_shape(&json.at("shape")));
  const std::vector<Json>& data = json.at("data").items();
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (array.dtype == Dtype::Float32)
      array.as<float>()[i] = static_cast<float>(data[i].real());
    else
      store_integer(array.dtype, array.bytes.data(), i, data[i].integer());
  }
  return array;
}

inline Columns columns_of(const Json& json) {
  Columns columns;
  for (const auto& [name, array] : json.members()) columns.emplace_back(name, array_of(array));
  return columns;
}

inline const Array& find(const Columns& columns, const std::string& name) {
  for (const auto& [known, array] : columns)
    if (known == name) return array;
  throw std::runtime_error("no column " + name);
}

inline void expect_near(const float* came, const Array& expected, double tolerance, const std::string& what) {
  const float* wanted = expected.as<float>();
  for (std::size_t i = 0; i < expected.count(); ++i)
    EXPECT_NEAR(came[i], wanted[i], tolerance * (1 + std::abs(wanted[i]))) << what << " " << i;
}

/// Says whether calling raises our error of this kind.
template <class F>
::testing::AssertionResult raises(Error::Kind kind, F call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.kind == kind) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << error.name() << ": " << error.what();
  }
  return ::testing::AssertionFailure() << "nothing was raised";
}

}  // namespace farfield
