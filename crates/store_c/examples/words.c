// Counts words in a store that a folder keeps: run it twice, and it goes on counting.
//
//   cc words.c -Iinclude -Ltarget/library -lpluvio_store_c -o words && ./words FOLDER

#include <pluvio_store.h>

#include <stdio.h>
#include <string.h>

static const char *const WORDS[] = {"the", "rain", "falls", "on", "the", "sea", "and", "the", "land"};

// What failed, and why.
static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, pluvio_message());
    return 1;
}

int main(int count, char **arguments) {
    pluvio_options options;
    pluvio_store store;
    pluvio_table words;
    pluvio_options_init(&options);
    options.memory = 64 << 20;
    options.folder = count > 1 ? arguments[1] : NULL;
    if (pluvio_store_open(&options, &store) != PLUVIO_OK) return failed("open");
    if (pluvio_table_open(store, "words", 1, &words) != PLUVIO_OK) return failed("table");
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        const uint8_t *word = (const uint8_t *)WORDS[i];
        if (pluvio_increment(words, word, strlen(WORDS[i]), 1, NULL) != PLUVIO_OK)
            return failed("increment");
    }
    pluvio_iter iter;
    pluvio_bytes key, value;
    if (pluvio_iter_open(words, &iter) != PLUVIO_OK) return failed("iterate");
    while (pluvio_iter_next(iter, &key, &value) == PLUVIO_OK)
        printf("%.*s %.*s\n", (int)key.size, key.data, (int)value.size, value.data);
    pluvio_iter_close(iter);
    // Waits until the folder has everything.
    return pluvio_store_close(store) == PLUVIO_OK ? 0 : failed("close");
}
