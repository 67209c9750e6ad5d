//! `math.random`: the generator of Redis, which is `lrand48` of C. It begins each script with the
//! same seed, so that a script draws the same numbers each time.

use crate::arguments::{Arguments, raise, to_int};
use crate::interpreter::Shared;
use core::cell::Cell;
use mlua::{Lua, MultiValue, Table};
use std::rc::Rc;

/// The state of the generator: 48 bits.
#[derive(Debug)]
pub(crate) struct Random(Cell<u64>);

impl Default for Random {
    fn default() -> Self {
        let random = Self(Cell::new(0));
        random.seed(0);
        random
    }
}

impl Random {
    /// Begins anew.
    pub(crate) fn seed(&self, seed: i32) {
        self.0.set(u64::from(seed.cast_unsigned()) << 16 | 0x330e);
    }

    /// A number of 0 or more, and below 1.
    fn next(&self) -> f64 {
        let next = self.0.get().wrapping_mul(0x5_deec_e66d).wrapping_add(0xb);
        let next = next & 0xffff_ffff_ffff;
        self.0.set(next);
        let drawn = (next >> 17) % u64::from(i32::MAX.unsigned_abs());
        drawn as f64 / f64::from(i32::MAX)
    }
}

fn draw(random: &Random, arguments: &Arguments<'_>) -> mlua::Result<f64> {
    let drawn = random.next();
    let limit = |n| arguments.number(n).map(to_int);
    match arguments.len() {
        0 => Ok(drawn),
        1 => match limit(1)? {
            most @ 1.. => Ok((drawn * f64::from(most)).floor() + 1.0),
            ..=0 => Err(arguments.bad(1, "interval is empty")),
        },
        2 => {
            let (least, most) = (limit(1)?, limit(2)?);
            if least > most {
                return Err(arguments.bad(2, "interval is empty"));
            }
            let width = most.wrapping_sub(least).wrapping_add(1);
            Ok((drawn * f64::from(width)).floor() + f64::from(least))
        }
        3.. => Err(raise(arguments.lua, "wrong number of arguments")),
    }
}

/// Puts the functions into the table of the library `math`.
pub(crate) fn install(lua: &Lua, math: &Table, shared: &Shared) -> mlua::Result<()> {
    let state = Rc::clone(shared);
    let random = lua.create_function(move |lua, values: MultiValue| {
        draw(&state.random, &Arguments::new(lua, values))
    })?;
    let state = Rc::clone(shared);
    let seed = lua.create_function(move |lua, values: MultiValue| {
        let seed = Arguments::new(lua, values).number(1)?;
        state.random.seed(to_int(seed));
        Ok(())
    })?;
    math.raw_set("random", random)?;
    math.raw_set("randomseed", seed)
}
