"""Counts words in a store that a folder keeps: run it twice, and it goes on counting.

python words.py FOLDER
"""

import sys

import pluvio_store

TEXT = "the rain falls on the sea and the land"

with pluvio_store.Store(sys.argv[1], memory=64 << 20) as store:
    words = store.table("words")
    for word in TEXT.split():
        words.increment(word)
    for word, count in sorted(words.items()):
        print(word.decode(), int(count))
