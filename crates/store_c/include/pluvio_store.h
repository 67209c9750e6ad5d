// The embedded store of Pluvio; docs/embedded-c-and-python.md explains. Generated from crates/store_c.
//
// - Every function that can fail gives a pluvio_code. pluvio_message() says why the last call of
//   this thread that failed did so.
// - A pointer that is not null is valid for the size beside it, and where results are written it
//   may be written. A null pointer where one is needed gives PLUVIO_BAD_ARGUMENT.
// - Handles are numbers. A wrong or closed one gives PLUVIO_BAD_HANDLE.
// - Any number of threads may call, with the same handles too.
// - Keys have at most 64 KiB, values at most 1 MiB. Both may hold any bytes, and none.
// - A child made by fork() must not use what its parent has open.

#ifndef PLUVIO_STORE_H
#define PLUVIO_STORE_H

#include <stddef.h>
#include <stdint.h>

// As many cleaner threads as a store has by default.
#define PLUVIO_CLEANERS_USUAL 65535

// The object must not exist.
#define PLUVIO_IF_ABSENT 1

// The object must exist.
#define PLUVIO_IF_PRESENT 2

// The object must have the version that the conditions name; 0: must not exist.
#define PLUVIO_IF_VERSION 4

// Most items of one batch: they are looked at before the first is done.
#define PLUVIO_BATCH_MAX 65536

// What came of a call. After any but PLUVIO_OK, PLUVIO_NOT_FOUND and PLUVIO_END, `pluvio_message`
// says more.
typedef enum {
  // It was done.
  PLUVIO_OK = 0,
  // There is no object with this key. No error.
  PLUVIO_NOT_FOUND = 1,
  // The iterator has given all objects. No error.
  PLUVIO_END = 2,
  // The condition does not hold; the version of the object was given, 0 where there is none.
  PLUVIO_CONDITION = 3,
  // The buffer is too small; the size of the value was given, and nothing was copied.
  PLUVIO_BUFFER_TOO_SMALL = 4,
  // Memory is full. Retry after `pluvio_retry_after_us`, or delete something.
  PLUVIO_FULL = 5,
  // A pointer is null or not aligned, or a combination of arguments has no meaning.
  PLUVIO_BAD_ARGUMENT = 6,
  // The handle is of another kind, was never given, or is closed.
  PLUVIO_BAD_HANDLE = 7,
  // A key, value, name or batch is longer than is possible.
  PLUVIO_TOO_LONG = 8,
  // An option is outside of its range.
  PLUVIO_BAD_OPTION = 9,
  // There is no table with this name, or it was dropped.
  PLUVIO_NO_TABLE = 10,
  // The store overwrites values in place, and keeps no deadlines.
  PLUVIO_NO_DEADLINES = 11,
  // The value is no whole number of 64 bits.
  PLUVIO_NOT_A_NUMBER = 12,
  // The sum is outside of 64 bits.
  PLUVIO_OVERFLOW = 13,
  // The system refuses memory or a thread, or there are too many handles.
  PLUVIO_NO_RESOURCES = 14,
  // A file cannot be read or written. A retry may help.
  PLUVIO_FILE = 15,
  // The folder is open already, or views or iterators of the store are open.
  PLUVIO_IN_USE = 16,
  // What the folder keeps is damaged.
  PLUVIO_DAMAGED = 17,
  // The library has an error. The store may be unusable; other stores are not touched.
  PLUVIO_PANIC = 18,
  // Mapped memory does not tell it: the owner is to be asked.
  PLUVIO_ASK = 19,
  // The owner of mapped memory is gone, or lets this process not read. A retry may help.
  PLUVIO_GONE = 20,
} pluvio_code;

// Options of a store: begin with `pluvio_options_init`.
typedef struct {
  // The size of this structure.
  size_t size;
  // Bytes of log memory. Default 256 MiB.
  uint64_t memory;
  // Bytes of a segment; 0, the default: a 256th of the memory, within 2.5 to 8 MiB.
  uint64_t segment;
  // The folder that keeps the store; null, the default: none, and nothing outlives the store.
  const char *folder;
  // Bytes of the longest key. Default 64 KiB, and no more.
  uint32_t key_max;
  // Bytes of the longest value; 0, the default: as long as is possible, about 1 MiB.
  uint32_t value_max;
  // Most live objects, in percent of the memory. Default 90.
  uint32_t live_percent_max;
  // Places where threads append side by side; 0, the default: one for each processor.
  uint16_t heads;
  // Threads that clean. Default: PLUVIO_CLEANERS_USUAL, which is 1, or one for each memory node
  // where the memory is large enough. With 0 call `pluvio_store_clean`.
  uint16_t cleaner_threads;
  // Not 0: a value that fits overwrites the old one. Not with a folder, no deadlines.
  uint8_t in_place;
  // Not 0: strangers choose the keys.
  uint8_t keyed_hashing;
  // 0: no huge pages. 1, the default: if possible. 2: required.
  uint8_t huge_pages;
  // Not 0: fetch all memory at once.
  uint8_t populate;
} pluvio_options;

// A store. A value of 0 is none.
typedef struct {
  // Of no meaning to others.
  uint64_t id;
} pluvio_store;

// Numbers of a store, as of one moment each.
typedef struct {
  // Objects in all tables.
  uint64_t objects;
  // Objects dropped since the start because their deadlines were past.
  uint64_t expired;
  // Bytes of keys and values.
  uint64_t object_bytes;
  // Bytes that live objects take in the log.
  uint64_t live_bytes;
  // Most that they may take.
  uint64_t live_bytes_max;
  // Bytes of log memory in use, live or dead.
  uint64_t log_bytes;
  // Bytes of all indexes.
  uint64_t index_bytes;
  // Memory that was touched and not given back.
  uint64_t resident_bytes;
  // Log memory that is free.
  uint64_t free_bytes;
  // Log memory.
  uint64_t memory_bytes;
  // Bytes of the log in the folder; 0 without one.
  uint64_t folder_bytes;
  // Views and iterators that are open.
  uint64_t views;
} pluvio_stats;

// A table of a store. A value of 0 is none.
typedef struct {
  // Of no meaning to others.
  uint64_t id;
} pluvio_table;

// A value where it lies in the store.
typedef struct {
  // The value. Never null; of no meaning when `size` is 0.
  const uint8_t *data;
  // Its size in bytes.
  size_t size;
  // The version of the object.
  uint64_t version;
  // Of no meaning to others.
  uint64_t id;
} pluvio_view;

// Under which conditions an object is changed, and how long it lives. All zero: no condition, for
// ever.
typedef struct {
  // One of PLUVIO_IF_ABSENT, PLUVIO_IF_PRESENT, PLUVIO_IF_VERSION, or 0.
  uint32_t when;
  // For PLUVIO_IF_VERSION.
  uint64_t version;
  // Milliseconds that the object lives; 0: for ever, or until `deadline_ms`.
  uint64_t ttl_ms;
  // Milliseconds since 1970 of its end; 0: none. Not together with `ttl_ms`.
  uint64_t deadline_ms;
} pluvio_conditions;

// Bytes of the caller.
typedef struct {
  // Where they begin. May be null if there are none.
  const uint8_t *data;
  // How many.
  size_t size;
} pluvio_bytes;

// Is shown the value of the key at place `at`; `value` is null when there is no object. The value
// is valid during the call, and the function must return. It may call the library.
typedef void (*pluvio_visit)(void *context, size_t at, const uint8_t *value, size_t size);

// A key and a value of the caller.
typedef struct {
  // The key.
  pluvio_bytes key;
  // The value.
  pluvio_bytes value;
} pluvio_pair;

// An iterator over a table. A value of 0 is none.
typedef struct {
  // Of no meaning to others.
  uint64_t id;
} pluvio_iter;

// Mapped memory of another process. A value of 0 is none.
typedef struct {
  // Of no meaning to others.
  uint64_t id;
} pluvio_reader;

// The owner of mapped memory.
typedef struct {
  // The id of the server's cluster; 0 for a store inside a program.
  uint64_t cluster;
  // The id of the server; 0 for a store inside a program.
  uint64_t server;
} pluvio_mapped_owner;

// A table in mapped memory. A value of 0 is none.
typedef struct {
  // Of no meaning to others.
  uint64_t id;
} pluvio_mapped_table;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says why the last call of this thread that failed did so. Valid until the next one that fails;
// never null.
const char *pluvio_message(void);

// When to retry after the last PLUVIO_FULL of this thread, in microseconds.
uint64_t pluvio_retry_after_us(void);

// Sets all options to their defaults.
pluvio_code pluvio_options_init(pluvio_options *options);

// Opens a store. With a folder it reads what that keeps.
pluvio_code pluvio_store_open(const pluvio_options *options, pluvio_store *store);

// Closes a store and its tables. With a folder it waits until that has everything; if that fails
// the store is closed all the same. PLUVIO_IN_USE, and nothing is done, while views or iterators
// of it are open. Calls that other threads are in keep its memory until they return.
pluvio_code pluvio_store_close(pluvio_store store);

// Waits until the folder has everything that was written before. Without one it does nothing.
pluvio_code pluvio_store_sync(pluvio_store store);

// Does a part of the cleaner's work. Call it once a second at least if there are no cleaner
// threads.
pluvio_code pluvio_store_clean(pluvio_store store);

// The numbers of a store.
pluvio_code pluvio_store_stats(pluvio_store store, pluvio_stats *stats);

// Opens the table with this name (UTF-8). If it is missing and `create` is not 0, it is made.
pluvio_code pluvio_table_open(pluvio_store store,
                              const char *name,
                              int32_t create,
                              pluvio_table *table);

// Closes a handle of a table; the table and other handles of it stay.
pluvio_code pluvio_table_close(pluvio_table table);

// Drops the table with this name and all it holds. PLUVIO_NO_TABLE when there is none.
pluvio_code pluvio_table_drop(pluvio_store store, const char *name);

// Number of objects of a table; while others write, some number it had.
pluvio_code pluvio_table_size(pluvio_table table, uint64_t *size);

// Copies a value into `buffer`, which has room for `capacity` bytes. `size`, where it is not null,
// gets the size of the value, also with PLUVIO_BUFFER_TOO_SMALL; `version` the version.
// PLUVIO_NOT_FOUND: there is no object.
pluvio_code pluvio_get(pluvio_table table,
                       const uint8_t *key,
                       size_t key_size,
                       uint8_t *buffer,
                       size_t capacity,
                       size_t *size,
                       uint64_t *version);

// Shows a value where it lies, until `pluvio_view_release`; any thread may release it. The store
// gives no memory back while a view of it is open: hold it briefly. For values of some KiB and
// more; `pluvio_get` is faster for small ones. PLUVIO_NOT_FOUND: there is no object.
pluvio_code pluvio_view_get(pluvio_table table,
                            const uint8_t *key,
                            size_t key_size,
                            pluvio_view *view);

// Ends a view, and sets it to nothing. PLUVIO_BAD_HANDLE if it was ended before.
pluvio_code pluvio_view_release(pluvio_view *view);

// Stores a value. `conditions` may be null. `version`, where it is not null, gets the version of
// the new object; with PLUVIO_CONDITION that of the object that is there, or 0.
pluvio_code pluvio_put(pluvio_table table,
                       const uint8_t *key,
                       size_t key_size,
                       const uint8_t *value_data,
                       size_t value_size,
                       const pluvio_conditions *conditions,
                       uint64_t *version);

// Removes an object; PLUVIO_NOT_FOUND when there is none. Of `conditions`, which may be null, only
// `when` and `version` count. `version`, where it is not null, gets with PLUVIO_CONDITION the
// version of the object that is there, or 0.
pluvio_code pluvio_delete(pluvio_table table,
                          const uint8_t *key,
                          size_t key_size,
                          const pluvio_conditions *conditions,
                          uint64_t *version);

// Adds to a number, which is stored as decimal text; an object that is not there counts as 0.
// `sum`, where it is not null, gets the sum.
pluvio_code pluvio_increment(pluvio_table table,
                             const uint8_t *key,
                             size_t key_size,
                             int64_t by,
                             int64_t *sum);

// Gives an object another lifetime, for ever when both are 0. PLUVIO_NOT_FOUND: there is no
// object.
pluvio_code pluvio_touch(pluvio_table table,
                         const uint8_t *key,
                         size_t key_size,
                         uint64_t ttl_ms,
                         uint64_t deadline_ms);

// The deadline of an object, in milliseconds since 1970; 0 when it lives for ever.
// PLUVIO_NOT_FOUND: there is no object.
pluvio_code pluvio_deadline(pluvio_table table,
                            const uint8_t *key,
                            size_t key_size,
                            uint64_t *deadline_ms);

// Shows `visit` the value of each of `count` keys, in their order. Faster than one by one: waits
// for memory overlap.
pluvio_code pluvio_get_batch(pluvio_table table,
                             const pluvio_bytes *keys,
                             size_t count,
                             pluvio_visit visit,
                             void *context);

// Stores `count` pairs in their order, up to the first error. `stored`, where it is not null, gets
// how many were stored; they stay.
pluvio_code pluvio_put_batch(pluvio_table table,
                             const pluvio_pair *pairs,
                             size_t count,
                             size_t *stored);

// Opens an iterator over all objects of a table, in no useful order. An object that is there all
// the time comes exactly once; one that is changed meanwhile may or may not come.
pluvio_code pluvio_iter_open(pluvio_table table, pluvio_iter *iter);

// Gives the next object, or PLUVIO_END. Both are valid until the next call with this iterator,
// which one thread uses at a time.
pluvio_code pluvio_iter_next(pluvio_iter iter, pluvio_bytes *key, pluvio_bytes *value_place);

// Closes an iterator.
pluvio_code pluvio_iter_close(pluvio_iter iter);

// Connects to the door at `path`, and maps what its owner shares: a program with an embedded
// store, or a server that runs with --mapped-reads. PLUVIO_GONE: nobody is there, or this process
// may not read. May wait for the owner, some seconds at most. A child made by fork() may go on
// with a reader.
pluvio_code pluvio_reader_open(const char *path, pluvio_reader *reader);

// Closes a reader. Its memory goes back when its tables are closed, too.
pluvio_code pluvio_reader_close(pluvio_reader reader);

// Tells who owns the memory.
pluvio_code pluvio_reader_owner(pluvio_reader reader, pluvio_mapped_owner *owner);

// Opens a table of an embedded store by its name.
pluvio_code pluvio_reader_table(pluvio_reader reader, const char *name, pluvio_mapped_table *table);

// Opens a table of a server by its number (`pluvio table list --json` has it). A table that the
// server does not have is one of which all reads give PLUVIO_ASK.
pluvio_code pluvio_reader_table_numbered(pluvio_reader reader,
                                         uint64_t number,
                                         pluvio_mapped_table *table);

// Closes a table in mapped memory.
pluvio_code pluvio_mapped_table_close(pluvio_mapped_table table);

// Copies a value out of mapped memory into `buffer`, as `pluvio_get` does. It makes no system call
// as long as the owner's tables stay where they are. Else it asks the owner for their new places,
// once, and may wait some seconds if the owner hangs.
//
// PLUVIO_ASK: memory does not tell it now. A server knows; of an embedded store, try again.
// PLUVIO_GONE: the owner is gone, or lets this process read no more. A later call may find it.
pluvio_code pluvio_mapped_get(pluvio_mapped_table table,
                              const uint8_t *key,
                              size_t key_size,
                              uint8_t *buffer,
                              size_t capacity,
                              size_t *size,
                              uint64_t *version);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PLUVIO_STORE_H */
