use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{Table, figure};

/// One figure of three systems, measured in the same run: one that has a known fault, the same with its published repair, and this.
///
/// As JSON: `{what better before their_fix ours ahead}`, where `better` is `less` or `more` and `ahead` is how many times better ours
/// is than `before`.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    what: String,
    better: Better,
    before: Option<f64>,
    their_fix: Option<f64>,
    ours: f64,
}

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times, CPU and the like.
    Less,
    /// Throughput and the like.
    More,
}

impl Compared {
    /// `ours`, of which nothing else was measured so far.
    #[must_use]
    pub fn new(what: impl Into<String>, better: Better, ours: f64) -> Self {
        Self {
            what: what.into(),
            better,
            before: None,
            their_fix: None,
            ours,
        }
    }

    /// The same of the system with the fault, where it ran.
    #[must_use]
    pub fn before(self, before: Option<f64>) -> Self {
        Self { before, ..self }
    }

    /// The same of the system with its repair, where it ran.
    #[must_use]
    pub fn their_fix(self, their_fix: Option<f64>) -> Self {
        Self { their_fix, ..self }
    }

    /// How many times better ours is than what was before, where that is known.
    #[must_use]
    pub fn ahead(&self) -> Option<f64> {
        let before = self.before?;
        let times = match self.better {
            Better::Less => before / self.ours,
            Better::More => self.ours / before,
        };
        times.is_finite().then_some(times)
    }

    /// All of `rows` as a table.
    #[must_use]
    pub fn table(rows: &[Self]) -> Table {
        let or_none = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
        let cells = |row: &Self| {
            vec![
                row.what.clone(),
                or_none(row.before),
                or_none(row.their_fix),
                figure(row.ours),
                or_none(row.ahead()),
            ]
        };
        Table::new(
            "Before, their fix and ours",
            &["figure", "before", "their fix", "ours", "times ahead"],
            rows.iter().map(cells),
        )
    }
}

impl Serialize for Compared {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let better = match self.better {
            Better::Less => "less",
            Better::More => "more",
        };
        let mut fields = serializer.serialize_struct("Compared", 6)?;
        fields.serialize_field("what", &self.what)?;
        fields.serialize_field("better", better)?;
        fields.serialize_field("before", &self.before)?;
        fields.serialize_field("their_fix", &self.their_fix)?;
        fields.serialize_field("ours", &self.ours)?;
        fields.serialize_field("ahead", &self.ahead())?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_ahead_by_what_is_better() {
        let check = |better, before, ahead| {
            let row = Compared::new("it", better, 2.0).before(before);
            assert_eq!(row.ahead(), ahead, "{row:?}");
        };
        check(Better::Less, Some(8.0), Some(4.0));
        check(Better::More, Some(8.0), Some(0.25));
        check(Better::Less, None, None);
        check(Better::More, Some(0.0), None);
    }

    #[test]
    fn a_row_says_all_three_and_what_was_not_measured() {
        let row = Compared::new("mean µs", Better::Less, 2.0)
            .before(Some(9.0))
            .their_fix(None);
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "what": "mean µs", "better": "less", "before": 9.0, "their_fix": null, "ours": 2.0, "ahead": 4.5,
            })
        );
        let text = Compared::table(std::slice::from_ref(&row)).text();
        assert!(text.contains("mean µs") && text.contains('-'), "{text}");
    }
}
