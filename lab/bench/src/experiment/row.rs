//! A row of an experiment: named cells in the order in which they were put in.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Named values in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Row(Vec<(String, Value)>);

impl Row {
    /// An empty row.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The row with one more cell. Numbers that are not finite become empty cells.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Puts a cell in, or another value in the cell of that name.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// The row followed by the cells of another one.
    #[must_use]
    pub fn and(mut self, more: Row) -> Self {
        for (name, value) in more.0 {
            self.set(&name, value);
        }
        self
    }

    /// All cells.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// A cell.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let found = self.0.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }

    /// A cell that is a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// A cell as text; empty when there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        match self.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_keep_their_order_and_are_replaced_by_name() {
        let row = Row::new().with("b", 1).with("a", "x").with("b", 2);
        let names: Vec<_> = row.cells().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(row.number("b"), Some(2.0));
        assert_eq!(row.text("a"), "x");
        assert_eq!(row.text("missing"), "");
    }

    #[test]
    fn json_keeps_the_order() {
        let row = Row::new().with("z", 1).with("a", 0.5);
        assert_eq!(serde_json::to_string(&row).unwrap(), r#"{"z":1,"a":0.5}"#);
    }

    #[test]
    fn what_is_not_finite_is_an_empty_cell() {
        assert_eq!(Row::new().with("x", f64::NAN).text("x"), "");
    }
}
