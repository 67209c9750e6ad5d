//! `bit`: operations on 32 bits, as the library BitOp does them.

use crate::sandbox::library;
use mlua::{Lua, Table, Variadic};

/// A number as 32 bits: taken modulo 2^32, the fraction rounded.
fn bits(number: f64) -> i32 {
    let rounded = number.round_ties_even();
    let wrapped = rounded.rem_euclid(4_294_967_296.0);
    (wrapped as u64 as u32).cast_signed()
}

fn number(bits: i32) -> f64 {
    f64::from(bits)
}

fn folded(lua: &Lua, fold: fn(i32, i32) -> i32) -> mlua::Result<mlua::Function> {
    lua.create_function(move |_, numbers: Variadic<f64>| {
        let mut numbers = numbers.iter().map(|one| bits(*one));
        let Some(first) = numbers.next() else {
            return Err(mlua::Error::runtime(
                "bad argument #1 (number expected, got no value)",
            ));
        };
        Ok(number(numbers.fold(first, fold)))
    })
}

fn shifted(lua: &Lua, shift: fn(i32, u32) -> i32) -> mlua::Result<mlua::Function> {
    lua.create_function(move |_, (value, by): (f64, f64)| {
        let by = bits(by).cast_unsigned() & 31;
        Ok(number(shift(bits(value), by)))
    })
}

fn hex(value: f64, digits: Option<f64>) -> String {
    let digits = digits.map_or(8, |digits| digits as i32);
    let count = usize::try_from(digits.unsigned_abs()).unwrap_or(8).min(8);
    let all = format!("{:08x}", bits(value).cast_unsigned());
    let shown = &all[8 - count..];
    match digits < 0 {
        true => shown.to_uppercase(),
        false => shown.to_owned(),
    }
}

/// The library.
pub(crate) fn open(lua: &Lua) -> mlua::Result<Table> {
    library(
        lua,
        [
            (
                "tobit",
                lua.create_function(|_, value: f64| Ok(number(bits(value))))?,
            ),
            (
                "bnot",
                lua.create_function(|_, value: f64| Ok(number(!bits(value))))?,
            ),
            ("band", folded(lua, |a, b| a & b)?),
            ("bor", folded(lua, |a, b| a | b)?),
            ("bxor", folded(lua, |a, b| a ^ b)?),
            ("lshift", shifted(lua, |value, by| value << by)?),
            (
                "rshift",
                shifted(lua, |value, by| (value.cast_unsigned() >> by).cast_signed())?,
            ),
            ("arshift", shifted(lua, |value, by| value >> by)?),
            ("rol", shifted(lua, i32::rotate_left)?),
            ("ror", shifted(lua, i32::rotate_right)?),
            (
                "bswap",
                lua.create_function(|_, value: f64| Ok(number(bits(value).swap_bytes())))?,
            ),
            (
                "tohex",
                lua.create_function(|_, (value, digits): (f64, Option<f64>)| {
                    Ok(hex(value, digits))
                })?,
            ),
        ],
    )
}
