/* Farfield for any language that can call C: opaque handles, error codes, and the text of the last error.
 *
 *   ff_options* options = ff_options_new();
 *   ff_set(options, "address", "127.0.0.1:50051");
 *   ff_set(options, "run", "lander");
 *   ff_set(options, "spec", SPEC_AS_JSON);
 *   ff_session* app;
 *   if (ff_connect(options, &app) != FF_OK) puts(ff_last_error());
 *   ff_episode* episode;
 *   ff_episode_begin(app, 0, 0, &episode);
 *   ff_act(episode, obs, 8, NULL, 0, &action);
 *   ff_reward(episode, 1.0);
 *   ff_end(episode, 0, NULL, 0);
 *   ff_episode_free(episode);
 *   ff_close(app, 5.0, NULL);
 *   ff_session_free(app);
 *
 * Every call gives FF_OK or what went wrong; nothing is ever thrown across. Handles may be used by any thread, an
 * episode by one at a time. Calls never wait for a network, except those that take seconds.
 */
#ifndef FARFIELD_H
#define FARFIELD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ff_options ff_options;
typedef struct ff_session ff_session;
typedef struct ff_episode ff_episode;

enum {
  FF_OK = 0,
  FF_SPEC = 1,     /* data that do not fit what was agreed */
  FF_MISSING = 2,  /* something that is needed is not there */
  FF_CORRUPT = 3,  /* bytes that are not what they say they are */
  FF_CONFIG = 4,   /* a setting that cannot be used, a token that is refused */
  FF_FULL = 5,     /* no room */
  FF_CONFLICT = 6, /* somebody else holds it */
  FF_ARGUMENT = 7, /* a handle or a pointer that is null */
  FF_INTERNAL = 8  /* anything else, such as no memory */
};

/* Element types, numbered as on the wire. */
enum {
  FF_BOOL = 1, FF_INT8, FF_INT16, FF_INT32, FF_INT64, FF_UINT8, FF_UINT16, FF_UINT32, FF_UINT64, FF_FLOAT16,
  FF_FLOAT32, FF_FLOAT64
};

/* A named array that stays the caller's; `count` is of elements, row by row. */
typedef struct {
  const char* name;
  const void* data;
  int dtype;
  size_t count;
} ff_column;

typedef struct {
  uint64_t payloads, bytes, in_memory;
} ff_remaining;

/* client.hpp says what each is. */
typedef struct {
  uint64_t acted, fallbacks, episodes, fragments, steps, credits, sent, owned, refused, adopted, dropped_fragments,
      dropped_steps, dropped_credits, damaged_bytes, waiting, waiting_bytes, memory_bytes, spooled_bytes, ahead,
      versions;
  int64_t version, newest; /* -1: none yet */
  uint64_t lag;
  double version_age;
  uint64_t reconnects, rubbish;
  int connected;
} ff_counters;

/* What went wrong last in this thread; never null. */
const char* ff_last_error(void);
/* Of this library, such as "0.1.0". */
const char* ff_library_version(void);

ff_options* ff_options_new(void);
void ff_options_free(ff_options* options);
/* Sets: address, run, spec (JSON), token, policy, config (JSON), client, spool (a folder; "" none), quota, memory,
 * flush, wait, patience, tls (0 or 1), ca, cert, key (files), tls_name, fallback (numbers with commas between), pace
 * (0 or 1).
 * client.hpp says what each is. */
int ff_set(ff_options* options, const char* name, const char* value);

/* Takes a copy of the options. */
int ff_connect(const ff_options* options, ff_session** session);
/* Waits for the first version; FF_MISSING when it did not come in time. */
int ff_wait(ff_session* session, double seconds);
/* `remaining` may be null. */
int ff_flush(ff_session* session, double seconds, ff_remaining* remaining);
int ff_close(ff_session* session, double seconds, ff_remaining* remaining);
void ff_session_free(ff_session* session);
int ff_counters_get(const ff_session* session, ff_counters* counters);
/* The newest version; -1: none yet. */
int64_t ff_version(const ff_session* session);
/* Writes text and a final zero, cut to `size`; gives the size that all of it needs, so that one may ask first. */
size_t ff_prometheus(const ff_session* session, char* text, size_t size);

/* `lanes` 0: one, without an axis for it. `greedy` 1: the best action. */
int ff_episode_begin(ff_session* session, size_t lanes, int greedy, ff_episode** episode);
/* Ends the episode as terminated if it did not end, and gives back the handle. */
void ff_episode_free(ff_episode* episode);

/* One float32 observation and one discrete action, one lane; `mask` null: the spec has none. */
int ff_act(ff_episode* episode, const float* observation, size_t count, const uint8_t* mask, size_t choices,
           int64_t* action);
/* Any spec; then ask for each action field. */
int ff_decide(ff_episode* episode, const ff_column* observations, size_t count);
/* Where the actions of a field stand until the next decision. */
int ff_action(const ff_episode* episode, size_t field, const void** data);
int ff_reward(ff_episode* episode, double amount);
int ff_rewards(ff_episode* episode, const double* amounts, size_t lanes);
/* `last` is what would have been seen next, if the episode was only cut off; null: not known. */
int ff_end(ff_episode* episode, int truncated, const float* last, size_t count);
int ff_end_with(ff_episode* episode, int truncated, const ff_column* last, size_t count);
/* Ends some lanes of a batched episode; `truncated` may be null. */
int ff_restart(ff_episode* episode, const uint8_t* ended, const uint8_t* truncated, size_t lanes);
/* A decision that somebody else made. */
int ff_record(ff_episode* episode, const float* observation, size_t count, int64_t action, double reward,
              const char* source);

/* Names the last decision: `stream` takes 33 bytes. */
int ff_decision(const ff_episode* episode, char stream[33], uint64_t* n);
/* A late reward; `set` 1: instead of what it was. `id` null: one is drawn. */
int ff_credit(ff_session* session, const char* stream, uint64_t n, double reward, int set, const char* id);

#ifdef __cplusplus
}
#endif

#endif
