// A seed and actions in, observations and rewards out: the LunarLander task (Gymnasium's LunarLander-v3 by its
// published definition: discrete actions, no wind) on the system's Box2D 2.4.
//
// Observation (8): place, speed, angle and turning speed relative to the pad, and whether each leg touches the ground.
// Actions: 0 nothing, 1 left engine, 2 main engine, 3 right engine.
// Reward: how much better the lander is placed than before, less the fuel; -100 for a crash or for leaving the screen,
// +100 for coming to rest. An episode is cut off after 1000 steps.
#pragma once

#include <box2d/box2d.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>

namespace lander {

constexpr std::size_t kInputs = 8;
constexpr int kActions = 4;
constexpr int kLimit = 1000;  // steps of an episode

using Observation = std::array<float, kInputs>;

enum Action : int { kNothing = 0, kLeft = 1, kMain = 2, kRight = 3 };

struct Step {
  Observation observation{};
  double reward = 0.0;
  bool terminated = false;
  bool truncated = false;
};

class Lander final : public b2ContactListener {
 public:
  explicit Lander(std::uint64_t seed) : random_(seed) {}

  // Begins an episode on new ground, with a push into a random direction.
  Observation reset() {
    world_ = std::make_unique<b2World>(b2Vec2(0.0F, -10.0F));
    world_->SetContactListener(this);
    crashed_ = false;
    touching_ = {0, 0};
    steps_ = 0;
    make_ground();
    make_body();
    make_legs();
    shaping_.reset();
    const Observation first = step(kNothing).observation;
    steps_ = 0;
    return first;
  }

  // Moves on by one fiftieth of a second.
  Step step(int action) {
    burn(action);
    world_->Step(1.0F / kRate, 180, 60);
    ++steps_;
    Step out;
    out.observation = observe();
    const double shaping = value(out.observation);
    out.reward = shaping_ ? shaping - *shaping_ : 0.0;
    shaping_ = shaping;
    if (action == kMain) out.reward -= 0.3;
    if (action == kLeft || action == kRight) out.reward -= 0.03;
    if (crashed_ || std::abs(out.observation[0]) >= 1.0F) {
      out.terminated = true;
      out.reward = -100.0;
    } else if (!body_->IsAwake()) {
      out.terminated = true;
      out.reward = 100.0;
    }
    out.truncated = !out.terminated && steps_ >= kLimit;
    return out;
  }

  // For tests: puts the lander, at rest and upright, with its legs about so far (in metres) above the pad.
  void place(float above) {
    const float lean = body_->GetAngle();
    const b2Vec2 from = body_->GetPosition();
    const b2Vec2 to(kWidth / 2, pad() + kLegDown / kScale + above);
    for (b2Body* part : {body_, legs_[0], legs_[1]}) {
      part->SetTransform(to + b2MulT(b2Rot(lean), part->GetPosition() - from), part->GetAngle() - lean);
      part->SetLinearVelocity(b2Vec2(0.0F, 0.0F));
      part->SetAngularVelocity(0.0F);
    }
    shaping_.reset();
  }

  bool touches(int leg) const { return touching_[static_cast<std::size_t>(leg)] > 0; }

 private:
  // Sizes are given in pixels of a 600 x 400 screen; a metre has 30 of them.
  static constexpr float kRate = 50.0F;
  static constexpr float kScale = 30.0F;
  static constexpr float kWidth = 600.0F / kScale;
  static constexpr float kHeight = 400.0F / kScale;
  static constexpr float kLegAway = 20.0F;
  static constexpr float kLegDown = 18.0F;
  static constexpr float kMainPower = 13.0F;
  static constexpr float kSidePower = 0.6F;
  static constexpr std::uint16_t kGroundBits = 0x1;

  static float pad() { return kHeight / 4; }

  float between(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random_); }

  void make_ground() {
    constexpr int kChunks = 11;
    std::array<float, kChunks + 1> heights{};
    for (float& height : heights) height = between(0.0F, kHeight / 2);
    for (int i = kChunks / 2 - 2; i <= kChunks / 2 + 2; ++i) heights[static_cast<std::size_t>(i)] = pad();
    const auto smooth = [&heights](int i) {
      const std::size_t count = heights.size();
      const auto at = static_cast<std::size_t>(i);
      return 0.33F * (heights[(at + count - 1) % count] + heights[at] + heights[at + 1]);
    };
    const b2BodyDef definition;
    ground_ = world_->CreateBody(&definition);
    edge(b2Vec2(0.0F, 0.0F), b2Vec2(kWidth, 0.0F));
    for (int i = 0; i + 1 < kChunks; ++i) {
      const float wide = kWidth / (kChunks - 1);
      edge(b2Vec2(wide * static_cast<float>(i), smooth(i)), b2Vec2(wide * static_cast<float>(i + 1), smooth(i + 1)));
    }
  }

  void edge(const b2Vec2& from, const b2Vec2& to) {
    b2EdgeShape shape;
    shape.SetTwoSided(from, to);
    b2FixtureDef fixture;
    fixture.shape = &shape;
    fixture.friction = 0.1F;
    fixture.filter.categoryBits = kGroundBits;
    ground_->CreateFixture(&fixture);
  }

  void make_body() {
    b2BodyDef definition;
    definition.type = b2_dynamicBody;
    definition.position.Set(kWidth / 2, kHeight);
    body_ = world_->CreateBody(&definition);
    constexpr float kOutline[6][2] = {{-14, 17}, {-17, 0}, {-17, -10}, {17, -10}, {17, 0}, {14, 17}};
    std::array<b2Vec2, 6> corners;
    for (std::size_t i = 0; i < corners.size(); ++i) corners[i].Set(kOutline[i][0] / kScale, kOutline[i][1] / kScale);
    b2PolygonShape shape;
    shape.Set(corners.data(), static_cast<int>(corners.size()));
    attach(body_, shape, 5.0F, 0x10);
    body_->ApplyForceToCenter(b2Vec2(between(-1000.0F, 1000.0F), between(-1000.0F, 1000.0F)), true);
  }

  void make_legs() {
    for (const int side : {-1, 1}) {
      const auto sign = static_cast<float>(side);
      b2BodyDef definition;
      definition.type = b2_dynamicBody;
      definition.position.Set(kWidth / 2 - sign * kLegAway / kScale, kHeight);
      definition.angle = sign * 0.05F;
      b2Body* leg = world_->CreateBody(&definition);
      b2PolygonShape shape;
      shape.SetAsBox(2.0F / kScale, 8.0F / kScale);
      attach(leg, shape, 1.0F, 0x20);
      b2RevoluteJointDef joint;  // a spring: a weak motor that pushes the leg outwards
      joint.bodyA = body_;
      joint.bodyB = leg;
      joint.localAnchorA.Set(0.0F, 0.0F);
      joint.localAnchorB.Set(sign * kLegAway / kScale, kLegDown / kScale);
      joint.enableMotor = true;
      joint.maxMotorTorque = 40.0F;
      joint.motorSpeed = 0.3F * sign;
      joint.enableLimit = true;
      joint.lowerAngle = side < 0 ? 0.4F : -0.9F;
      joint.upperAngle = side < 0 ? 0.9F : -0.4F;
      world_->CreateJoint(&joint);
      legs_[side < 0 ? 0 : 1] = leg;
    }
  }

  static void attach(b2Body* body, const b2Shape& shape, float density, std::uint16_t bits) {
    b2FixtureDef fixture;
    fixture.shape = &shape;
    fixture.density = density;
    fixture.friction = density > 1.0F ? 0.1F : 0.2F;
    fixture.restitution = 0.0F;
    fixture.filter.categoryBits = bits;
    fixture.filter.maskBits = kGroundBits;
    body->CreateFixture(&fixture);
  }

  // Engines do not burn evenly: where the push is applied varies a little.
  void burn(int action) {
    const float across = std::sin(body_->GetAngle());
    const float along = std::cos(body_->GetAngle());
    const float a = between(-1.0F, 1.0F) / kScale;
    const float b = between(-1.0F, 1.0F) / kScale;
    const b2Vec2 place = body_->GetPosition();
    if (action == kMain) {
      const float down = 4.0F / kScale + 2.0F * a;
      const b2Vec2 push(across * down - along * b, -along * down - across * b);
      body_->ApplyLinearImpulse(-kMainPower * push, place + push, true);
    } else if (action == kLeft || action == kRight) {
      const float away = 3.0F * b + static_cast<float>(action - 2) * 12.0F / kScale;
      const b2Vec2 push(across * a - along * away, -along * a - across * away);
      const b2Vec2 where(place.x + push.x - across * 17.0F / kScale, place.y + push.y + along * 14.0F / kScale);
      body_->ApplyLinearImpulse(-kSidePower * push, where, true);
    }
  }

  Observation observe() const {
    const b2Vec2 place = body_->GetPosition();
    const b2Vec2 speed = body_->GetLinearVelocity();
    constexpr float kHalfWidth = kWidth / 2;
    constexpr float kHalfHeight = kHeight / 2;
    return {(place.x - kHalfWidth) / kHalfWidth,
            (place.y - (pad() + kLegDown / kScale)) / kHalfHeight,
            speed.x * kHalfWidth / kRate,
            speed.y * kHalfHeight / kRate,
            body_->GetAngle(),
            20.0F * body_->GetAngularVelocity() / kRate,
            touches(0) ? 1.0F : 0.0F,
            touches(1) ? 1.0F : 0.0F};
  }

  static double value(const Observation& seen) {
    const auto length = [](double x, double y) { return std::sqrt(x * x + y * y); };
    return -100.0 * length(seen[0], seen[1]) - 100.0 * length(seen[2], seen[3]) - 100.0 * std::abs(seen[4]) +
           10.0 * seen[6] + 10.0 * seen[7];
  }

  void BeginContact(b2Contact* contact) override { touch(contact, 1); }
  void EndContact(b2Contact* contact) override { touch(contact, -1); }

  void touch(b2Contact* contact, int change) {
    for (const b2Body* part : {contact->GetFixtureA()->GetBody(), contact->GetFixtureB()->GetBody()}) {
      if (part == body_ && change > 0) crashed_ = true;
      for (std::size_t i = 0; i < 2; ++i) {
        if (part == legs_[i]) touching_[i] = std::max(0, touching_[i] + change);
      }
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<b2World> world_;
  b2Body* ground_ = nullptr;
  b2Body* body_ = nullptr;
  std::array<b2Body*, 2> legs_{};
  std::array<int, 2> touching_{};  // how many pieces of ground each leg touches
  std::optional<double> shaping_;
  bool crashed_ = false;
  int steps_ = 0;
};

}  // namespace lander
