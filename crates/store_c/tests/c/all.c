// Does everything that the header offers, from several threads; says "all is well".

#include <pluvio_store.h>

#include <pthread.h>
#include <stdbool.h>
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

#define THREADS 4
#define ROUNDS 2000

static const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

static pluvio_store open_store(const char *folder) {
    pluvio_options options;
    OK(pluvio_options_init(&options));
    options.memory = 64 << 20;
    options.segment = 40 * (64 << 10);
    options.folder = folder;
    options.heads = 2;
    pluvio_store store;
    OK(pluvio_store_open(&options, &store));
    return store;
}

struct work {
    pluvio_table table;
    int number;
};

// Threads share a counter, write their own keys, and read those of others through views.
static void *work(void *argument) {
    struct work *work = argument;
    uint8_t value[3000];
    for (int round = 0; round < ROUNDS; round++) {
        char key[32];
        int size = snprintf(key, sizeof key, "%d-%d", work->number, round % 100);
        memset(value, round & 0xff, sizeof value);
        pluvio_code code;
        do {
            code = pluvio_put(work->table, bytes(key), size, value, sizeof value, NULL, NULL);
        } while (code == PLUVIO_FULL && pluvio_retry_after_us() > 0);
        CHECK(code == PLUVIO_OK);
        int64_t sum;
        OK(pluvio_increment(work->table, bytes("counter"), 7, 1, &sum));
        CHECK(sum > round);
        size = snprintf(key, sizeof key, "%d-%d", (work->number + 1) % THREADS, round % 100);
        pluvio_view view;
        code = pluvio_view_get(work->table, bytes(key), size, &view);
        if (code == PLUVIO_OK) {
            CHECK(view.size == sizeof value && view.data[0] == view.data[2999]);
            OK(pluvio_view_release(&view));
        } else {
            CHECK(code == PLUVIO_NOT_FOUND);
        }
    }
    return NULL;
}

static void *release(void *view) {
    OK(pluvio_view_release(view));
    return NULL;
}

static void threads(pluvio_table table) {
    pthread_t running[THREADS];
    struct work works[THREADS];
    for (int i = 0; i < THREADS; i++) {
        works[i] = (struct work){table, i};
        CHECK(pthread_create(&running[i], NULL, work, &works[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(running[i], NULL) == 0);
    int64_t sum;
    OK(pluvio_increment(table, bytes("counter"), 7, 0, &sum));
    CHECK(sum == THREADS * ROUNDS);
}

static void values(pluvio_table table) {
    uint64_t first, second, version;
    uint8_t buffer[16];
    size_t size;
    OK(pluvio_put(table, bytes("Bern"), 4, bytes("134794"), 6, NULL, &first));
    OK(pluvio_get(table, bytes("Bern"), 4, buffer, sizeof buffer, &size, &version));
    CHECK(size == 6 && version == first && memcmp(buffer, "134794", 6) == 0);
    GIVES(PLUVIO_BUFFER_TOO_SMALL, pluvio_get(table, bytes("Bern"), 4, buffer, 5, &size, NULL));
    CHECK(size == 6);
    GIVES(PLUVIO_BUFFER_TOO_SMALL, pluvio_get(table, bytes("Bern"), 4, NULL, 0, &size, NULL));
    GIVES(PLUVIO_NOT_FOUND, pluvio_get(table, bytes("none"), 4, buffer, 16, NULL, NULL));
    // Empty keys and values are some, too.
    OK(pluvio_put(table, NULL, 0, NULL, 0, NULL, NULL));
    OK(pluvio_get(table, NULL, 0, NULL, 0, &size, NULL));
    CHECK(size == 0);
    OK(pluvio_delete(table, NULL, 0, NULL, NULL));
    GIVES(PLUVIO_NOT_FOUND, pluvio_delete(table, NULL, 0, NULL, NULL));

    pluvio_conditions absent = {.when = PLUVIO_IF_ABSENT};
    GIVES(PLUVIO_CONDITION, pluvio_put(table, bytes("Bern"), 4, NULL, 0, &absent, &version));
    CHECK(version == first);
    pluvio_conditions same = {.when = PLUVIO_IF_VERSION, .version = first, .ttl_ms = 3600000};
    OK(pluvio_put(table, bytes("Bern"), 4, bytes("137000"), 6, &same, &second));
    CHECK(second > first);
    uint64_t deadline;
    OK(pluvio_deadline(table, bytes("Bern"), 4, &deadline));
    CHECK(deadline > 1000);
    OK(pluvio_touch(table, bytes("Bern"), 4, 0, 0));
    OK(pluvio_deadline(table, bytes("Bern"), 4, &deadline));
    CHECK(deadline == 0);
    GIVES(PLUVIO_CONDITION, pluvio_delete(table, bytes("Bern"), 4, &same, &version));
    pluvio_conditions present = {.when = PLUVIO_IF_PRESENT};
    GIVES(PLUVIO_CONDITION, pluvio_put(table, bytes("none"), 4, NULL, 0, &present, &version));
    CHECK(version == 0);
    pluvio_conditions past = {.deadline_ms = 1};
    OK(pluvio_put(table, bytes("past"), 4, NULL, 0, &past, NULL));
    GIVES(PLUVIO_NOT_FOUND, pluvio_touch(table, bytes("past"), 4, 1, 0));

    OK(pluvio_put(table, bytes("text"), 4, bytes("x"), 1, NULL, NULL));
    GIVES(PLUVIO_NOT_A_NUMBER, pluvio_increment(table, bytes("text"), 4, 1, NULL));
    OK(pluvio_put(table, bytes("text"), 4, bytes("1"), 1, NULL, NULL));
    GIVES(PLUVIO_OVERFLOW, pluvio_increment(table, bytes("text"), 4, INT64_MAX, NULL));

    // A view stays while its object goes, and ends in another thread.
    pluvio_view view, copy;
    OK(pluvio_view_get(table, bytes("Bern"), 4, &view));
    OK(pluvio_delete(table, bytes("Bern"), 4, NULL, NULL));
    CHECK(view.size == 6 && memcmp(view.data, "137000", 6) == 0 && view.version > 0);
    copy = view;
    pthread_t other;
    CHECK(pthread_create(&other, NULL, release, &view) == 0 && pthread_join(other, NULL) == 0);
    GIVES(PLUVIO_BAD_HANDLE, pluvio_view_release(&view));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_view_release(&copy));
    GIVES(PLUVIO_NOT_FOUND, pluvio_view_get(table, bytes("Bern"), 4, &view));
}

struct seen {
    size_t calls, found;
};

static void visit(void *context, size_t at, const uint8_t *value, size_t size) {
    struct seen *seen = context;
    CHECK(at == seen->calls++);
    if (value != NULL) {
        CHECK(size == 1 && value[0] == 'a' + at);
        seen->found++;
    }
}

static void batches_and_walks(pluvio_table table) {
    uint8_t letters[26];
    pluvio_pair pairs[26];
    pluvio_bytes keys[27];
    for (int i = 0; i < 26; i++) {
        letters[i] = 'a' + i;
        pairs[i] = (pluvio_pair){{&letters[i], 1}, {&letters[i], 1}};
        keys[i] = pairs[i].key;
    }
    keys[26] = (pluvio_bytes){bytes("none"), 4};
    size_t stored;
    OK(pluvio_put_batch(table, pairs, 26, &stored));
    CHECK(stored == 26);
    struct seen seen = {0, 0};
    OK(pluvio_get_batch(table, keys, 27, visit, &seen));
    CHECK(seen.calls == 27 && seen.found == 26);
    uint64_t size;
    OK(pluvio_table_size(table, &size));
    CHECK(size == 26);

    pluvio_iter iter;
    pluvio_bytes key, value;
    size_t count = 0;
    bool there[26] = {false};
    OK(pluvio_iter_open(table, &iter));
    while (pluvio_iter_next(iter, &key, &value) == PLUVIO_OK) {
        CHECK(key.size == 1 && value.size == 1 && key.data[0] == value.data[0]);
        CHECK(!there[key.data[0] - 'a']);
        there[key.data[0] - 'a'] = true;
        count++;
    }
    CHECK(count == 26);
    GIVES(PLUVIO_END, pluvio_iter_next(iter, &key, &value));
    OK(pluvio_iter_close(iter));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_iter_next(iter, &key, &value));
}

// Null, wrong handles, huge lengths: each is an error, and nothing else happens.
static void wrong(pluvio_store store, pluvio_table table) {
    uint8_t byte = 0;
    size_t size;
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_options_init(NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_store_open(NULL, &store));
    pluvio_options options;
    pluvio_store none;
    OK(pluvio_options_init(&options));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_store_open(&options, NULL));
    options.memory = 1;
    GIVES(PLUVIO_BAD_OPTION, pluvio_store_open(&options, &none));
    CHECK(strstr(pluvio_message(), "option memory") != NULL && none.id == 0);
    options.memory = UINT64_MAX;
    GIVES(PLUVIO_BAD_OPTION, pluvio_store_open(&options, &none));
    OK(pluvio_options_init(&options));
    options.huge_pages = 9;
    GIVES(PLUVIO_BAD_OPTION, pluvio_store_open(&options, &none));
    OK(pluvio_options_init(&options));
    CHECK(options.cleaner_threads == PLUVIO_CLEANERS_USUAL);
    options.cleaner_threads = 65;
    GIVES(PLUVIO_BAD_OPTION, pluvio_store_open(&options, &none));
    options.size = 7;
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_store_open(&options, &none));

    pluvio_table wrong[] = {{0}, {1}, {store.id + (1 << 20)}, {UINT64_MAX}};
    for (int i = 0; i < 4; i++) {
        GIVES(PLUVIO_BAD_HANDLE, pluvio_put(wrong[i], &byte, 1, &byte, 1, NULL, NULL));
        GIVES(PLUVIO_BAD_HANDLE, pluvio_table_close(wrong[i]));
        GIVES(PLUVIO_BAD_HANDLE, pluvio_store_close((pluvio_store){wrong[i].id}));
        GIVES(PLUVIO_BAD_HANDLE, pluvio_iter_close((pluvio_iter){wrong[i].id}));
    }
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_put(table, NULL, 1, &byte, 1, NULL, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_put(table, &byte, 1, NULL, 1, NULL, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_get(table, &byte, 1, NULL, 1, &size, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_view_get(table, &byte, 1, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_view_release(NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_get_batch(table, NULL, 1, visit, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_get_batch(table, NULL, 0, NULL, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_iter_open(table, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_store_stats(store, NULL));
    pluvio_table unnamed;
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_table_open(store, NULL, 1, &unnamed));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_table_open(store, "\xff", 1, &unnamed));
    GIVES(PLUVIO_TOO_LONG, pluvio_put(table, &byte, SIZE_MAX, &byte, 1, NULL, NULL));
    GIVES(PLUVIO_TOO_LONG, pluvio_put(table, &byte, 1, &byte, SIZE_MAX, NULL, NULL));
    GIVES(PLUVIO_TOO_LONG, pluvio_get(table, &byte, SIZE_MAX / 2, &byte, 1, NULL, NULL));
    pluvio_bytes huge = {&byte, SIZE_MAX};
    GIVES(PLUVIO_TOO_LONG, pluvio_get_batch(table, &huge, 1, visit, NULL));
    GIVES(PLUVIO_TOO_LONG, pluvio_get_batch(table, &huge, SIZE_MAX, visit, NULL));
    pluvio_conditions both = {.ttl_ms = 1, .deadline_ms = 1};
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_put(table, &byte, 1, &byte, 1, &both, NULL));
    both = (pluvio_conditions){.when = 3};
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_put(table, &byte, 1, &byte, 1, &both, NULL));
    GIVES(PLUVIO_NO_TABLE, pluvio_table_drop(store, "none"));
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    pluvio_store store = open_store(NULL);
    pluvio_table table, other, letters;
    GIVES(PLUVIO_NO_TABLE, pluvio_table_open(store, "work", 0, &table));
    CHECK(table.id == 0);
    OK(pluvio_table_open(store, "work", 1, &table));
    OK(pluvio_table_open(store, "other", 1, &other));
    OK(pluvio_table_open(store, "letters", 1, &letters));
    threads(table);
    values(other);
    batches_and_walks(letters);
    wrong(store, other);
    OK(pluvio_table_drop(store, "other"));
    GIVES(PLUVIO_NO_TABLE, pluvio_put(other, bytes("x"), 1, NULL, 0, NULL, NULL));
    OK(pluvio_table_close(other));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_table_close(other));

    pluvio_stats stats;
    pluvio_iter iter;
    OK(pluvio_iter_open(letters, &iter));
    OK(pluvio_store_clean(store));
    OK(pluvio_store_stats(store, &stats));
    CHECK(stats.objects == 26 + 100 * THREADS + 1 && stats.views == 1);
    GIVES(PLUVIO_IN_USE, pluvio_store_close(store));
    OK(pluvio_iter_close(iter));
    OK(pluvio_store_close(store));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_store_close(store));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_put(table, bytes("x"), 1, NULL, 0, NULL, NULL));

    // A folder keeps it over lives.
    for (int life = 1; life <= 3; life++) {
        store = open_store(arguments[1]);
        pluvio_options options;
        pluvio_store second;
        OK(pluvio_options_init(&options));
        options.folder = arguments[1];
        GIVES(PLUVIO_IN_USE, pluvio_store_open(&options, &second));
        OK(pluvio_table_open(store, "lives", 1, &table));
        int64_t sum;
        OK(pluvio_increment(table, bytes("life"), 4, 1, &sum));
        CHECK(sum == life);
        OK(pluvio_store_sync(store));
        OK(pluvio_store_close(store));
    }
    puts("all is well");
    return 0;
}
