// Values of heads and noise in, actions out; values and actions in, log-probabilities out.
#include "farfield/decide.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "farfield/error.hpp"
#include "halves.hpp"

namespace farfield {
namespace {

constexpr float FORBIDDEN = -5e8f;  // below this a masked choice is meant: masks put -1e9
constexpr float NEVER = -1e9f;
constexpr float HALF_LOG_TWO_PI = 0.918938533204672742f;

/// The first of the largest.
std::size_t largest(const float* values, const float* noise, std::size_t count) {
  std::size_t best = 0;
  float most = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    const float value = noise ? values[i] + noise[i] : values[i];
    if (value > most) {
      most = value;
      best = i;
    }
  }
  return best;
}

/// The largest noise among what is not masked; where all is, as in rows that do not count, among all.
std::size_t anything(const float* q, const float* noise, std::size_t count) {
  std::size_t best = count;
  for (std::size_t i = 0; i < count; ++i)
    if (q[i] > FORBIDDEN && (best == count || noise[i] > noise[best])) best = i;
  return best < count ? best : largest(noise, nullptr, count);
}

std::uint16_t load_bits(const std::uint8_t* data, std::size_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
  return bits;
}

double load_real(Dtype dtype, const std::uint8_t* data, std::size_t i) {
  if (dtype == Dtype::Float16) return from_half(load_bits(data, i));
  if (dtype == Dtype::Float32) {
    float value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  if (dtype == Dtype::Float64) {
    double value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  return static_cast<double>(load_integer(dtype, data, i));
}

void store_real(Dtype dtype, std::uint8_t* data, std::size_t i, float value) {
  if (dtype == Dtype::Float16) {
    const std::uint16_t bits = to_half(value);
    std::memcpy(data + i * sizeof bits, &bits, sizeof bits);
    return;
  }
  if (dtype == Dtype::Float32) {
    std::memcpy(data + i * sizeof value, &value, sizeof value);
  } else if (dtype == Dtype::Float64) {
    const double wide = value;
    std::memcpy(data + i * sizeof wide, &wide, sizeof wide);
  } else {
    store_integer(dtype, data, i, static_cast<std::int64_t>(value));
  }
}

template <class T>
std::int64_t get(const std::uint8_t* data, std::size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof value, sizeof value);
  return static_cast<std::int64_t>(value);
}

template <class T>
void put(std::uint8_t* data, std::size_t i, std::int64_t from) {
  const T value = static_cast<T>(from);
  std::memcpy(data + i * sizeof value, &value, sizeof value);
}

float log_softmax(const float* logits, std::size_t count, std::int64_t chosen) {
  float most = -std::numeric_limits<float>::infinity(), sum = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, logits[i]);
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(logits[i] - most);
  const bool there = chosen >= 0 && static_cast<std::size_t>(chosen) < count;
  return (there ? logits[chosen] - most : NEVER) - std::log(sum);
}

}  // namespace

std::int64_t load_integer(Dtype dtype, const std::uint8_t* data, std::size_t i) {
  switch (dtype) {
    case Dtype::Bool:
    case Dtype::Uint8: return get<std::uint8_t>(data, i);
    case Dtype::Int8: return get<std::int8_t>(data, i);
    case Dtype::Int16: return get<std::int16_t>(data, i);
    case Dtype::Int32: return get<std::int32_t>(data, i);
    case Dtype::Int64: return get<std::int64_t>(data, i);
    case Dtype::Uint16: return get<std::uint16_t>(data, i);
    case Dtype::Uint32: return get<std::uint32_t>(data, i);
    case Dtype::Uint64: return get<std::uint64_t>(data, i);
    case Dtype::Float32: return get<float>(data, i);
    case Dtype::Float64: return get<double>(data, i);
    case Dtype::Float16: return static_cast<std::int64_t>(from_half(load_bits(data, i)));
    default: config_error(std::string("an action of ") + name_of(dtype) + " cannot be read; use another dtype");
  }
}

void store_integer(Dtype dtype, std::uint8_t* data, std::size_t i, std::int64_t value) {
  switch (dtype) {
    case Dtype::Bool:
    case Dtype::Uint8: return put<std::uint8_t>(data, i, value);
    case Dtype::Int8: return put<std::int8_t>(data, i, value);
    case Dtype::Int16: return put<std::int16_t>(data, i, value);
    case Dtype::Int32: return put<std::int32_t>(data, i, value);
    case Dtype::Int64: return put<std::int64_t>(data, i, value);
    case Dtype::Uint16: return put<std::uint16_t>(data, i, value);
    case Dtype::Uint32: return put<std::uint32_t>(data, i, value);
    case Dtype::Uint64: return put<std::uint64_t>(data, i, value);
    case Dtype::Float32: return put<float>(data, i, value);
    case Dtype::Float64: return put<double>(data, i, value);
    case Dtype::Float16: return put<std::uint16_t>(data, i, to_half(static_cast<float>(value)));
    default: config_error(std::string("an action of ") + name_of(dtype) + " cannot be written; use another dtype");
  }
}

Heads::Heads(const Spec& spec, const Network& network, const std::vector<Program::Output>& outputs) {
  const auto output = [&](const Head& head, std::size_t i) -> const Program::Output& {
    for (const Program::Output& one : outputs)
      if (i < head.inputs.size() && one.node == head.inputs[i]) return one;
    config_error("the head of '" + head.action + "' lacks an input; the network was not made by farfield");
  };
  std::vector<bool> decided(spec.actions.size());
  for (const Head& head : network.heads) {
    std::size_t action = 0;
    while (action < spec.actions.size() && spec.actions[action].name != head.action) ++action;
    if (action == spec.actions.size()) config_error("a head decides '" + head.action + "', which is no action");
    if (decided[action]) config_error("two heads decide '" + head.action + "'");
    decided[action] = true;
    const Field& field = spec.actions[action];
    One one{head.kind, field.dtype, action, field.count(), 0, 0, 0, noise_, false, field.sizes};
    const bool choice = head.kind == Head::Kind::Categorical || head.kind == Head::Kind::Epsilon;
    const Program::Output& first = output(head, 0);
    one.first = first.offset;
    one.width = choice ? field.choices() : field.count();
    if (head.kind == Head::Kind::Gaussian || head.kind == Head::Kind::Epsilon) {
      const Program::Output& second = output(head, 1);
      one.second = second.offset;
      one.spread = second.width == one.width && head.kind == Head::Kind::Gaussian;
      if (second.width != 1 && !one.spread)
        config_error("the head of '" + head.action + "' has a second input " + text_of(second.shape));
    }
    if (first.width != one.width || !one.width || (choice && field.sizes.empty()))
      config_error("the head of '" + head.action + "' reads " + text_of(first.shape) + " for " +
                   std::to_string(one.width) + " choices; the network was not made for this spec");
    if (head.kind == Head::Kind::Epsilon && one.count != 1)
      config_error("the head of '" + head.action + "' is epsilon, which decides one choice alone");
    noise_ += one.width + (head.kind == Head::Kind::Epsilon ? 1 : 0);
    heads_.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < decided.size(); ++i)
    if (!decided[i])
      config_error("no head decides '" + spec.actions[i].name + "'; the network was not made for this spec");
}

void Heads::choose(const float* values, const float* noise, std::uint8_t* const* actions) const {
  for (const One& head : heads_) {
    const float *x = values + head.first, *drawn = noise ? noise + head.noise : nullptr;
    std::uint8_t* to = actions[head.action];
    switch (head.kind) {
      case Head::Kind::Categorical:
        for (std::size_t i = 0; i < head.sizes.size(); ++i) {
          const std::size_t size = static_cast<std::size_t>(head.sizes[i]);
          store_integer(head.dtype, to, i, static_cast<std::int64_t>(largest(x, drawn, size)));
          x += size;
          if (drawn) drawn += size;
        }
        break;
      case Head::Kind::Bernoulli:
        for (std::size_t i = 0; i < head.width; ++i)
          store_integer(head.dtype, to, i, (drawn ? x[i] + drawn[i] : x[i]) > 0);
        break;
      case Head::Kind::Gaussian:
        for (std::size_t i = 0; i < head.width; ++i) {
          const float log_std = values[head.second + (head.spread ? i : 0)];
          store_real(head.dtype, to, i, drawn ? x[i] + std::exp(log_std) * drawn[i] : x[i]);
        }
        break;
      case Head::Kind::Epsilon: {
        const bool any = drawn && drawn[head.width] < values[head.second];
        const std::size_t chosen = any ? anything(x, drawn, head.width) : largest(x, nullptr, head.width);
        store_integer(head.dtype, to, 0, static_cast<std::int64_t>(chosen));
      }
    }
  }
}

float Heads::log_prob(const float* values, const std::uint8_t* const* actions) const {
  float total = 0;
  for (const One& head : heads_) {
    const float* x = values + head.first;
    const std::uint8_t* action = actions[head.action];
    switch (head.kind) {
      case Head::Kind::Categorical:
        for (std::size_t i = 0; i < head.sizes.size(); ++i) {
          total += log_softmax(x, static_cast<std::size_t>(head.sizes[i]), load_integer(head.dtype, action, i));
          x += head.sizes[i];
        }
        break;
      case Head::Kind::Bernoulli:
        for (std::size_t i = 0; i < head.width; ++i) {
          const float against = load_real(head.dtype, action, i) > 0 ? -x[i] : x[i];
          total -= std::max(against, 0.0f) + std::log1p(std::exp(-std::abs(against)));
        }
        break;
      case Head::Kind::Gaussian:
        for (std::size_t i = 0; i < head.width; ++i) {
          const float log_std = values[head.second + (head.spread ? i : 0)];
          const float distance = (static_cast<float>(load_real(head.dtype, action, i)) - x[i]) * std::exp(-log_std);
          total += -0.5f * distance * distance - log_std - HALF_LOG_TWO_PI;
        }
        break;
      case Head::Kind::Epsilon: {
        const std::int64_t chosen = load_integer(head.dtype, action, 0);
        const float epsilon = values[head.second];
        std::size_t allowed = 0;
        for (std::size_t i = 0; i < head.width; ++i) allowed += x[i] > FORBIDDEN;
        const bool there = chosen >= 0 && static_cast<std::size_t>(chosen) < head.width;
        const bool may = there && (!allowed || x[chosen] > FORBIDDEN);
        float chance = may ? epsilon / static_cast<float>(allowed ? allowed : head.width) : 0;
        if (there && static_cast<std::size_t>(chosen) == largest(x, nullptr, head.width)) chance += 1 - epsilon;
        total += std::max(std::log(chance), NEVER);
      }
    }
  }
  return total;
}

std::vector<float> Heads::scores(const float* values) const {
  for (const One& head : heads_) {
    const bool choice = head.kind == Head::Kind::Categorical || head.kind == Head::Kind::Epsilon;
    if (head.action || !choice || head.count != 1) continue;
    const float* x = values + head.first;
    std::vector<float> found(x, x + head.width);
    if (head.kind == Head::Kind::Categorical)
      for (std::size_t i = 0; i < head.width; ++i) found[i] = log_softmax(x, head.width, static_cast<std::int64_t>(i));
    return found;
  }
  return {};
}

}  // namespace farfield
