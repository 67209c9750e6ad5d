"""Settings of Django's own tests: the cache is its Redis backend, and results go to a file."""

import os

DATABASES = {
    alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    for alias in ("default", "other")
}
SECRET_KEY = "not a secret"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": os.environ["PLUVIO_URL"],
    }
}
TEST_RUNNER = "pluvio_runner.Runner"
