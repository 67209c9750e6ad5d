//! The data set of `pluvio demo`: what weather stations at real places measure in four days.
//!
//! The places (`places.csv`) are a hundredth of the populated places of the GeoNames gazetteer
//! (www.geonames.org, CC BY 4.0). A station's measurements are computed from its latitude, the
//! hour, and a number that stands for its weather: the same in every run.

use std::fmt::Write as _;
use std::sync::LazyLock;

/// The stations: CSV with a head line.
const PLACES: &str = include_str!("places.csv");
/// Hours in which each station measures.
const HOURS: u32 = 96;
/// Where it comes from, for people.
pub const SOURCE: &str =
    "four days of weather stations, computed for places of GeoNames (www.geonames.org, CC BY 4.0)";

/// The data set: CSV with a head line.
pub fn csv() -> &'static str {
    static CSV: LazyLock<String> = LazyLock::new(measured);
    &CSV
}

/// How many records it has.
pub fn records() -> u64 {
    u64::from(HOURS) * (PLACES.lines().count() as u64 - 1)
}

fn measured() -> String {
    let mut text = "name,country,lat,lon,hour,celsius,wind_ms,humidity\n".to_owned();
    for hour in 0..HOURS {
        for (number, place) in PLACES.lines().skip(1).enumerate() {
            let latitude = place.rsplit(',').nth(1).and_then(|text| text.parse().ok());
            let weather = mixed((number as u64) << 8 | u64::from(hour / 24));
            let (celsius, wind, humidity) = weather_of(latitude.unwrap_or(0.0), hour, weather);
            let _infallible = writeln!(text, "{place},{hour},{celsius:.1},{wind:.1},{humidity}");
        }
    }
    text
}

/// Temperature, wind and humidity: colder towards the poles, warmest in the afternoon.
fn weather_of(latitude: f64, hour: u32, weather: u64) -> (f64, f64, u64) {
    let draw = |bits: u32| (weather >> bits & 0xff) as f64 / 255.0;
    let afternoon = (f64::from(hour % 24) - 15.0).abs().min(12.0) / 12.0;
    let celsius = 30.0 - latitude.abs() * 0.5 - 9.0 * afternoon + 12.0 * (draw(0) - 0.5);
    (
        celsius,
        14.0 * draw(8) * draw(16),
        30 + (weather >> 24) % 70,
    )
}

/// A number that looks random (the last steps of splitmix64).
fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_set_is_large_and_every_line_has_all_fields() {
        let mut lines = csv().lines();
        let fields = lines.next().unwrap().split(',').count();
        assert!(lines.all(|line| line.split(',').count() == fields && !line.contains('"')));
        assert_eq!(csv().lines().count() as u64 - 1, records());
        assert!(records() > 100_000);
    }
}
