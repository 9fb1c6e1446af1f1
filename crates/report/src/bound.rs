use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{Table, figure};

/// A measured figure and the bound that it is held against.
///
/// As JSON: `{what value bound holds}`, the bound as text (`>= 0.95`).
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    what: String,
    value: f64,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// `value` should be no less than `least`.
    #[must_use]
    pub fn at_least(what: impl Into<String>, value: f64, least: f64) -> Self {
        Self {
            what: what.into(),
            value,
            limit: Limit::AtLeast(least),
        }
    }

    /// `value` should be no more than `most`.
    #[must_use]
    pub fn at_most(what: impl Into<String>, value: f64, most: f64) -> Self {
        Self {
            what: what.into(),
            value,
            limit: Limit::AtMost(most),
        }
    }

    /// Whether the figure keeps its bound. A figure that is not a number does not.
    #[must_use]
    pub fn holds(&self) -> bool {
        match self.limit {
            Limit::AtLeast(least) => self.value >= least,
            Limit::AtMost(most) => self.value <= most,
        }
    }

    /// All of `bounds` as a table.
    #[must_use]
    pub fn table(bounds: &[Self]) -> Table {
        let cells = |bound: &Self| {
            let holds = if bound.holds() { "yes" } else { "no" };
            vec![
                bound.what.clone(),
                figure(bound.value),
                bound.limit.text(),
                holds.to_owned(),
            ]
        };
        Table::new(
            "Bounds",
            &["figure", "measured", "bound", "holds"],
            bounds.iter().map(cells),
        )
    }
}

impl Limit {
    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Bound", 4)?;
        fields.serialize_field("what", &self.what)?;
        fields.serialize_field("value", &self.value)?;
        fields.serialize_field("bound", &self.limit.text())?;
        fields.serialize_field("holds", &self.holds())?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_up_to_its_limit() {
        let check = |bound: Bound, holds: bool| assert_eq!(bound.holds(), holds, "{bound:?}");
        check(Bound::at_least("a", 0.95, 0.95), true);
        check(Bound::at_least("a", 0.94, 0.95), false);
        check(Bound::at_most("a", 1.1, 1.1), true);
        check(Bound::at_most("a", 1.2, 1.1), false);
        check(Bound::at_most("a", f64::NAN, 1.1), false);
        check(Bound::at_least("a", f64::NAN, 1.1), false);
    }

    #[test]
    fn it_says_the_figure_the_bound_and_the_verdict() {
        let bound = Bound::at_least("throughput over the stream", 0.91, 0.95);
        let text = Bound::table(std::slice::from_ref(&bound)).text();
        for word in ["throughput over the stream", "0.91", ">= 0.95", "no"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let json = serde_json::to_value(&bound).unwrap();
        assert_eq!(json["bound"], ">= 0.95");
        assert_eq!(json["holds"], false);
    }
}
