// Package applications names the packages whose own tests are run, so that go.mod has their
// versions and those of what they need.
package applications

import (
	_ "github.com/bsm/redislock"
	_ "github.com/go-redis/redis_rate/v10"
	_ "github.com/redis/go-redis/v9"
	_ "github.com/ulule/limiter/v3/drivers/store/redis"
)
