//! The data set of `pluvio demo`: the populated places of GeoNames, embedded by `build.rs`.

/// The file: CSV with a head line.
pub const CSV: &str = include_str!(env!("PLUVIO_DEMO_DATA"));
/// Where it comes from, for people.
pub const SOURCE: &str = "populated places of GeoNames (www.geonames.org, CC BY 4.0)";

#[cfg(test)]
mod tests {
    use super::CSV;

    #[test]
    fn the_data_set_is_real_and_large() {
        assert!(CSV.lines().count() > 100_000);
        assert!(CSV.contains(",Reykjavik,"));
    }
}
