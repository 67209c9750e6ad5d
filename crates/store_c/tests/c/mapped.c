// Reads a store of another process in its memory, from several threads; says "all is well". The
// other process changes the keys meanwhile, and closes its door when this one has read.

#include "checks.h"

#include <pthread.h>

#define THREADS 3
#define ROUNDS 20000

// A value is one byte again and again.
static void *work(void *argument) {
    pluvio_mapped_table table = *(pluvio_mapped_table *)argument;
    static _Thread_local uint8_t value[100000];
    for (int round = 0; round < ROUNDS; round++) {
        char key[32];
        int key_size = snprintf(key, sizeof key, "key %d", round % 50);
        size_t size;
        uint64_t version;
        OK(pluvio_mapped_get(table, bytes(key), key_size, value, sizeof value, &size, &version));
        CHECK(size > 0 && version > 0);
        for (size_t at = 1; at < size; at++) CHECK(value[at] == value[0]);
    }
    return NULL;
}

static void arguments(const char *door) {
    pluvio_reader reader;
    pluvio_mapped_table table;
    GIVES(PLUVIO_GONE, pluvio_reader_open("/nowhere/at/all", &reader));
    CHECK(reader.id == 0 && strlen(pluvio_message()) > 0);
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_reader_open(NULL, &reader));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_reader_open(door, NULL));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_reader_table(reader, "towns", &table));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_reader_close(reader));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_mapped_table_close(table));
    OK(pluvio_reader_open(door, &reader));
    GIVES(PLUVIO_NO_TABLE, pluvio_reader_table(reader, "none", &table));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_reader_table(reader, NULL, &table));
    OK(pluvio_reader_table_numbered(reader, 77, &table));
    GIVES(PLUVIO_ASK, pluvio_mapped_get(table, NULL, 0, NULL, 0, NULL, NULL));
    OK(pluvio_mapped_table_close(table));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_mapped_get(table, NULL, 0, NULL, 0, NULL, NULL));
    OK(pluvio_reader_close(reader));
    GIVES(PLUVIO_BAD_HANDLE, pluvio_reader_close(reader));
}

int main(int count, char **words) {
    CHECK(count == 2);
    arguments(words[1]);
    pluvio_reader reader;
    pluvio_mapped_owner owner = {.cluster = 1, .server = 1};
    pluvio_mapped_table table;
    OK(pluvio_reader_open(words[1], &reader));
    OK(pluvio_reader_owner(reader, &owner));
    CHECK(owner.cluster == 0 && owner.server == 0);
    OK(pluvio_reader_table(reader, "towns", &table));

    uint8_t buffer[16];
    size_t size;
    uint64_t version;
    OK(pluvio_mapped_get(table, bytes("Bern"), 4, buffer, sizeof buffer, &size, &version));
    CHECK(size == 6 && version > 0 && memcmp(buffer, "134794", 6) == 0);
    pluvio_code code = pluvio_mapped_get(table, bytes("Bern"), 4, buffer, 5, &size, NULL);
    CHECK(code == PLUVIO_BUFFER_TOO_SMALL && size == 6);
    GIVES(PLUVIO_BUFFER_TOO_SMALL, pluvio_mapped_get(table, bytes("Bern"), 4, NULL, 0, NULL, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_mapped_get(table, NULL, 4, buffer, 5, &size, NULL));
    GIVES(PLUVIO_BAD_ARGUMENT, pluvio_mapped_get(table, bytes("Bern"), 4, NULL, 5, &size, NULL));
    GIVES(PLUVIO_NOT_FOUND, pluvio_mapped_get(table, bytes("none"), 4, buffer, 16, NULL, NULL));
    OK(pluvio_mapped_get(table, NULL, 0, NULL, 0, &size, NULL));
    CHECK(size == 0);

    pthread_t running[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&running[i], NULL, work, &table) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(running[i], NULL) == 0);

    // The reader goes; its table stays until it is closed.
    OK(pluvio_reader_close(reader));
    printf("read\n");
    fflush(stdout);
    CHECK(getchar() == EOF);
    GIVES(PLUVIO_GONE, pluvio_mapped_get(table, bytes("Bern"), 4, buffer, 16, NULL, NULL));
    OK(pluvio_mapped_table_close(table));
    printf("all is well\n");
    return 0;
}
