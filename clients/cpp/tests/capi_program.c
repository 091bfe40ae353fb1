/* A program in C, compiled by a C compiler: the three verbs, and what went wrong. */
#include <farfield/farfield.h>
#include <stdio.h>
#include <string.h>

static const char SPEC[] =
    "{\"actions\":[{\"name\":\"action\",\"kind\":\"discrete\",\"dtype\":\"int64\",\"sizes\":[4]}],"
    "\"observations\":[{\"name\":\"obs\",\"kind\":\"box\",\"dtype\":\"float32\",\"shape\":[8]}]}";

#define MUST(call)                                                          \
  do {                                                                      \
    if ((call) != FF_OK) {                                                  \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ff_last_error()); \
      return __LINE__;                                                      \
    }                                                                       \
  } while (0)

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return __LINE__;                                                \
    }                                                                 \
  } while (0)

/* Plays against a gateway; 0: all is well, otherwise the line where it was not. */
int play_in_c(const char* address, const char* spool) {
  float obs[8] = {0};
  int64_t action = -1;
  char stream[33];
  char text[64];
  uint64_t n = 0;
  const void* actions = NULL;
  ff_counters counters;
  ff_remaining remaining;
  ff_session* app = NULL;
  ff_episode* episode = NULL;
  ff_column column = {"obs", obs, FF_FLOAT32, 8};

  ff_options* options = ff_options_new();
  CHECK(options != NULL);
  MUST(ff_set(options, "address", address));
  MUST(ff_set(options, "run", "lander"));
  MUST(ff_set(options, "spec", SPEC));
  MUST(ff_set(options, "spool", spool));
  MUST(ff_set(options, "flush", "0"));
  MUST(ff_set(options, "wait", "20"));
  MUST(ff_set(options, "fallback", "2"));
  CHECK(ff_set(options, "nonsense", "1") == FF_CONFIG);
  CHECK(strstr(ff_last_error(), "nonsense") != NULL);
  CHECK(ff_set(options, "wait", "soon") == FF_CONFIG);
  CHECK(ff_set(options, "spec", "{") == FF_CORRUPT);

  MUST(ff_connect(options, &app));
  ff_options_free(options);
  MUST(ff_wait(app, 20.0));
  CHECK(ff_version(app) >= 0);
  MUST(ff_episode_begin(app, 0, 0, &episode));
  for (int i = 0; i < 30; ++i) {
    MUST(ff_act(episode, obs, 8, NULL, 0, &action));
    CHECK(action >= 0 && action < 4);
    MUST(ff_reward(episode, 1.0));
  }
  MUST(ff_decision(episode, stream, &n));
  CHECK(strlen(stream) == 32 && n == 29);
  MUST(ff_credit(app, stream, n, 0.5, 0, NULL));
  MUST(ff_end(episode, 1, obs, 8));

  MUST(ff_decide(episode, &column, 1));
  MUST(ff_action(episode, 0, &actions));
  CHECK(*(const int64_t*)actions >= 0);
  MUST(ff_record(episode, obs, 8, 3, 1.0, "person"));
  MUST(ff_end(episode, 0, NULL, 0));

  CHECK(ff_act(episode, obs, 7, NULL, 0, &action) == FF_SPEC);
  CHECK(ff_act(NULL, obs, 8, NULL, 0, &action) == FF_ARGUMENT);
  CHECK(ff_credit(app, "nonsense", 1, 1.0, 0, NULL) == FF_SPEC);
  ff_episode_free(episode);

  MUST(ff_flush(app, 20.0, &remaining));
  CHECK(remaining.payloads == 0);
  MUST(ff_counters_get(app, &counters));
  CHECK(counters.acted == 31 && counters.dropped_fragments == 0 && counters.connected == 1);
  CHECK(counters.owned == counters.fragments);
  CHECK(ff_prometheus(app, NULL, 0) > 1000);
  CHECK(ff_prometheus(app, text, sizeof text) > 1000 && strlen(text) == sizeof text - 1);
  MUST(ff_close(app, 20.0, NULL));
  ff_session_free(app);
  return 0;
}
