// What the programs of these tests share.

#include <pluvio_store.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, pluvio_message());          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == PLUVIO_OK)
#define GIVES(code, call) CHECK((call) == (code))

#define VALUE_MAX 100000

static inline const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

static inline void is_whole(const uint8_t *value, size_t size) {
    CHECK(size > 0);
    for (size_t at = 1; at < size; at++) CHECK(value[at] == value[0]);
}

// Gets key number `number` into `value`, and gives its byte: a value is one byte again and again.
static inline uint8_t get(pluvio_mapped_table table, int number, uint8_t *value) {
    char key[32];
    int key_size = snprintf(key, sizeof key, "key %d", number);
    size_t size;
    uint64_t version;
    pluvio_code code;
    // Memory does not tell it where the owner gets no processor for long.
    do {
        code = pluvio_mapped_get(table, bytes(key), key_size, value, VALUE_MAX, &size, &version);
    } while (code == PLUVIO_ASK);
    OK(code);
    CHECK(version > 0);
    is_whole(value, size);
    return value[0];
}
