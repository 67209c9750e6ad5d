//! `bit`: operations on 32 bits, as the library BitOp does them.

use crate::arguments::Arguments;
use crate::sandbox::library;
use mlua::{Function, Lua, MultiValue, Table};

/// Added to a number, it leaves the number's last 32 bits in those of the sum, the fraction
/// rounded: 2^52 + 2^51.
const SHIFTER: f64 = 6_755_399_441_055_744.0;

/// A number as 32 bits: taken modulo 2^32, the fraction rounded.
fn bits(arguments: &Arguments<'_>, n: usize) -> mlua::Result<i32> {
    let number = arguments.number(n)?;
    Ok(((number + SHIFTER).to_bits() as u32).cast_signed())
}

/// A function of the arguments.
fn made(lua: &Lua, of: fn(&Arguments<'_>) -> mlua::Result<i32>) -> mlua::Result<Function> {
    lua.create_function(move |lua, values: MultiValue| {
        of(&Arguments::new(lua, values)).map(f64::from)
    })
}

fn folded(lua: &Lua, fold: fn(i32, i32) -> i32) -> mlua::Result<Function> {
    lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let first = bits(&arguments, 1)?;
        let mut rest = (2..=arguments.len()).rev();
        let all = rest.try_fold(first, |so_far, n| {
            Ok::<_, mlua::Error>(fold(so_far, bits(&arguments, n)?))
        });
        all.map(f64::from)
    })
}

fn shifted(lua: &Lua, shift: fn(i32, u32) -> i32) -> mlua::Result<Function> {
    lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let value = bits(&arguments, 1)?;
        let by = bits(&arguments, 2)?.cast_unsigned() & 31;
        Ok(f64::from(shift(value, by)))
    })
}

fn hex(value: i32, digits: i32) -> String {
    let count = usize::try_from(digits.unsigned_abs()).unwrap_or(8).min(8);
    let all = format!("{:08x}", value.cast_unsigned());
    let shown = &all[8 - count..];
    match digits < 0 {
        true => shown.to_uppercase(),
        false => shown.to_owned(),
    }
}

/// The library.
pub(crate) fn open(lua: &Lua) -> mlua::Result<Table> {
    let to_hex = lua.create_function(|lua, values: MultiValue| {
        let arguments = Arguments::new(lua, values);
        let value = bits(&arguments, 1)?;
        let digits = match arguments.len() {
            ..=1 => 8,
            2.. => bits(&arguments, 2)?,
        };
        Ok(hex(value, digits))
    })?;
    library(
        lua,
        [
            ("tobit", made(lua, |arguments| bits(arguments, 1))?),
            ("bnot", made(lua, |arguments| Ok(!bits(arguments, 1)?))?),
            (
                "bswap",
                made(lua, |arguments| Ok(bits(arguments, 1)?.swap_bytes()))?,
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
            ("tohex", to_hex),
        ],
    )
}
