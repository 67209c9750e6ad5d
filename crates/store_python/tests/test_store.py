"""The module as a program sees it; run by tests/wheel.rs with the installed wheel."""

import gc
import tempfile
import threading
import unittest

import pluvio_store
from pluvio_store import Store

MIB = 1 << 20


def small(folder=None, **options):
    return Store(folder, memory=64 * MIB, heads=2, **options)


class Dictionary(unittest.TestCase):
    def test_it_does_what_a_dictionary_does(self):
        with small() as store:
            store["Bern"] = b"134794"
            store[bytearray(b"Thun")] = memoryview(b"43734")
            self.assertEqual(store[b"Bern"], b"134794")
            self.assertEqual(store.get("none"), None)
            self.assertEqual(store.get("none", 7), 7)
            self.assertIn("Thun", store)
            self.assertEqual(len(store), 2)
            self.assertEqual(dict(store), {b"Bern": b"134794", b"Thun": b"43734"})
            self.assertEqual(sorted(store), [b"Bern", b"Thun"])
            self.assertEqual(sorted(store.values()), [b"134794", b"43734"])
            del store["Bern"]
            with self.assertRaises(KeyError):
                store["Bern"]
            with self.assertRaises(KeyError):
                del store["Bern"]
            with self.assertRaises((TypeError, BufferError)):
                store[7] = b""

    def test_methods(self):
        with small() as store:
            first = store.put("key", "one", if_absent=True, ttl=3600)
            self.assertGreater(store.deadline("key"), 1e9)
            with self.assertRaises(pluvio_store.ConditionError) as refused:
                store.put("key", "two", if_absent=True)
            self.assertEqual(refused.exception.found, first)
            second = store.put("key", "two", if_version=first)
            self.assertGreater(second, first)
            self.assertIsNone(store.deadline("key"))
            self.assertTrue(store.touch("key", ttl=10))
            self.assertEqual(store.get_with_version("key")[0], b"two")
            with self.assertRaises(pluvio_store.ConditionError):
                store.delete("key", if_version=first)
            self.assertTrue(store.delete("key"))
            self.assertFalse(store.delete("key"))
            self.assertEqual(store.increment("n"), 1)
            self.assertEqual(store.increment("n", -3), -2)
            store["text"] = "x"
            with self.assertRaises(pluvio_store.NumberError):
                store.increment("text")
            store.put_many([(str(n), bytes(n)) for n in range(50)])
            self.assertEqual(store.get_many(["3", "none", "0"]), [bytes(3), None, b""])
            for wrong in ({"ttl": -1}, {"ttl": float("nan")}, {"ttl": 1, "until": 1}):
                with self.assertRaises(ValueError):
                    store.put("key", "", **wrong)
            with self.assertRaises(ValueError):
                store.put("key", "", if_absent=True, if_present=True)
            self.assertGreater(store.stats()["objects"], 50)


class Errors(unittest.TestCase):
    def test_limits(self):
        with small() as store:
            with self.assertRaises(pluvio_store.LimitError):
                store[bytes(65537)] = b""
            with self.assertRaises(pluvio_store.LimitError):
                store["key"] = bytes(MIB + 1)
        with self.assertRaises(pluvio_store.LimitError):
            Store(memory=1)

    def test_full(self):
        with small() as store:
            with self.assertRaises(pluvio_store.FullError) as full:
                for n in range(100):
                    store[str(n)] = bytes(MIB)
            self.assertGreater(full.exception.retry_after, 0)
            self.assertIsInstance(full.exception, pluvio_store.Error)

    def test_closed(self):
        store = small()
        table = store.table("other")
        walk = iter(store)
        store.close()
        store.close()
        for call in (lambda: store["x"], lambda: len(table), store.stats, store.sync):
            with self.assertRaises(pluvio_store.ClosedError):
                call()
        self.assertEqual(list(walk), [])

    def test_tables(self):
        with small() as store:
            table = store.table("towns")
            table["x"] = b"1"
            self.assertEqual(store.table_names(), ["main", "towns"])
            store.drop_table("towns")
            with self.assertRaises(pluvio_store.TableError):
                table["x"] = b"1"
            with self.assertRaises(pluvio_store.TableError):
                store.table("towns", create=False)


class Views(unittest.TestCase):
    def test_a_memoryview_outlives_view_object_and_store(self):
        store = small()
        store["key"] = bytes(range(256)) * 100
        memory = memoryview(store.view("key"))
        store["key"] = b"other"
        store.close()
        del store
        gc.collect()
        self.assertTrue(memory.readonly)
        self.assertEqual(memory[256:512], bytes(range(256)))
        with self.assertRaises(TypeError):
            memory[0] = 1
        memory.release()

    def test_a_view_ends_in_another_thread(self):
        with small() as store:
            store["key"] = b"value"
            held = [memoryview(store.view("key"))]
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
            self.assertIsNone(store.view("none"))
            self.assertEqual(len(store.view("key")), 5)
            self.assertGreater(store.view("key").version, 0)


class Threads(unittest.TestCase):
    def test_threads_count_together(self):
        with small() as store:

            def work(number):
                for n in range(2000):
                    store.increment("all")
                    store[f"{number}-{n % 50}"] = bytes(n)

            threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(store["all"], b"8000")
            self.assertEqual(len(store), 201)


class Folder(unittest.TestCase):
    def test_a_folder_keeps_the_store(self):
        with tempfile.TemporaryDirectory() as folder:
            for life in range(1, 4):
                with small(folder) as store:
                    self.assertEqual(store.increment("lives"), life)
                    store.table("other")["key"] = b"value"
                    store.sync()
                    with self.assertRaises(pluvio_store.FolderError):
                        small(folder)
            with small(folder) as store:
                self.assertEqual(store.table("other", create=False)["key"], b"value")


if __name__ == "__main__":
    unittest.main()
