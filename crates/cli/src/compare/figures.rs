//! What two sets of reports have in common.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};
use serde_json::{Map, Value};

/// The course of a run is no figure, and how a figure stood to its bound is said by the figure.
const LEFT_OUT: &[&str] = &["timeline", "bounds"];

/// Two sides, figure by figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    /// Numbers that both sides have, in the order of the first report.
    pub(super) figures: Vec<Figure>,
    /// Texts, such as settings, that differ.
    pub(super) settings: Vec<Setting>,
}

/// One number on both sides. As JSON: `{name before after ratio noise clear}`, null for what is not known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// Where it stands in the report: `store.memory.used_bytes`, `rows[lru 1000].hit_rate`.
    pub(super) name: String,
    /// The median of the first side's runs.
    pub(super) before: f64,
    /// The median of the second side's.
    pub(super) after: f64,
    /// `after` over `before`; none where that is zero and the other is not.
    pub(super) ratio: Option<f64>,
    /// The largest spread of a side that has more than one run, as a share of its median.
    pub(super) noise: Option<f64>,
}

/// A text that is not the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) before: String,
    pub(super) after: String,
}

impl Figure {
    fn new(name: String, before: Vec<f64>, after: Vec<f64>) -> Self {
        let noise = [&before, &after]
            .into_iter()
            .filter_map(|side| spread(side))
            .reduce(f64::max);
        let (before, after) = (median(before), median(after));
        let ratio = if before == after {
            Some(1.0)
        } else {
            (before != 0.0).then(|| after / before)
        };
        Self {
            name,
            before,
            after,
            ratio,
            noise,
        }
    }

    /// Whether the ratio is farther from 1 than the noise; not known with one run a side.
    pub(super) fn clear(&self) -> Option<bool> {
        let noise = self.noise?;
        // Where all but a few runs count nothing, the spread has no bound.
        let beyond = |ratio: f64| (ratio - 1.0).abs() > noise;
        Some(self.ratio.map_or(noise.is_finite(), beyond))
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Figure", 6)?;
        fields.serialize_field("name", &self.name)?;
        fields.serialize_field("before", &self.before)?;
        fields.serialize_field("after", &self.after)?;
        fields.serialize_field("ratio", &self.ratio)?;
        fields.serialize_field("noise", &self.noise)?;
        fields.serialize_field("clear", &self.clear())?;
        fields.end()
    }
}

/// The middle value; between the two in the middle of an even number.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

/// The distance between the largest and the smallest as a share of the median; none of a single value.
fn spread(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let (least, most) = values.iter().fold(
        (f64::INFINITY, f64::NEG_INFINITY),
        |(least, most), &value| (least.min(value), most.max(value)),
    );
    if least == most {
        return Some(0.0);
    }
    Some((most - least) / median(values.to_vec()).abs())
}

impl Comparison {
    /// Compares runs of the same command; each side has at least one. A figure counts where every run has it.
    pub(super) fn new(before: &[Value], after: &[Value]) -> Self {
        let mut leaves = Vec::new();
        let all: Vec<&Value> = before.iter().chain(after).collect();
        walk("", &all, &mut leaves);
        let (mut figures, mut settings) = (Vec::new(), Vec::new());
        for (name, values) in leaves {
            let numbers: Option<Vec<f64>> = values.iter().map(|value| value.as_f64()).collect();
            if let Some(mut numbers) = numbers {
                let of_after = numbers.split_off(before.len());
                figures.push(Figure::new(name, numbers, of_after));
                continue;
            }
            let text = |value: &Value| {
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned)
            };
            let (of_before, of_after) = (text(values[0]), text(values[before.len()]));
            if of_before != of_after {
                settings.push(Setting {
                    name,
                    before: of_before,
                    after: of_after,
                });
            }
        }
        Self { figures, settings }
    }
}

type Leaf<'a> = (String, Vec<&'a Value>);

/// Collects what all of `values`, which stand at one place of their reports, have in common.
fn walk<'a>(name: &str, values: &[&'a Value], leaves: &mut Vec<Leaf<'a>>) {
    let objects: Option<Vec<&Map<String, Value>>> =
        values.iter().map(|value| value.as_object()).collect();
    if let Some(objects) = objects {
        for field in objects[0]
            .keys()
            .filter(|field| !LEFT_OUT.contains(&field.as_str()))
        {
            let below: Option<Vec<&Value>> =
                objects.iter().map(|object| object.get(field)).collect();
            let name = if name.is_empty() {
                field.clone()
            } else {
                format!("{name}.{field}")
            };
            if let Some(below) = below {
                walk(&name, &below, leaves);
            }
        }
        return;
    }
    let lists: Option<Vec<&Vec<Value>>> = values.iter().map(|value| value.as_array()).collect();
    let Some(lists) = lists else {
        // A list on one side only is neither a figure nor a setting.
        if !values
            .iter()
            .any(|value| value.is_array() || value.is_object())
        {
            leaves.push((name.to_owned(), values.to_vec()));
        }
        return;
    };
    let rows: Vec<Vec<(String, &Value)>> = labelled(&lists);
    for (label, _) in &rows[0] {
        let same = |list: &Vec<(String, &'a Value)>| {
            list.iter()
                .find(|(other, _)| other == label)
                .map(|(_, row)| *row)
        };
        let below: Option<Vec<&Value>> = rows.iter().map(same).collect();
        if let Some(below) = below {
            walk(&format!("{name}[{label}]"), &below, leaves);
        }
    }
}

/// Gives each row a label by which the same row of another report is found: its texts, with one of its whole numbers, or
/// all, where texts do not tell the rows of a list apart. Of those that do, the label that most rows have in common counts.
/// Rows that nothing tells apart are known by their place.
fn labelled<'a>(lists: &[&'a Vec<Value>]) -> Vec<Vec<(String, &'a Value)>> {
    let mut rows = lists.iter().flat_map(|list| list.iter());
    let first = rows.find_map(Value::as_object);
    let numbers = first
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.is_u64());
    let numbers: Vec<&str> = numbers.map(|(field, _)| field.as_str()).collect();
    let single = numbers.iter().map(std::slice::from_ref);
    let choices = std::iter::once(&[][..]).chain(single).chain([&numbers[..]]);
    let mut best = None;
    for fields in choices {
        let labels: Vec<Vec<String>> = lists
            .iter()
            .map(|list| list.iter().map(|row| label(row, fields)).collect())
            .collect();
        let Some(common) = in_common(&labels) else {
            continue;
        };
        if best.as_ref().is_none_or(|(most, _)| common > *most) {
            best = Some((common, labels));
        }
    }
    let labels = best.map_or_else(
        || {
            lists
                .iter()
                .map(|list| (0..list.len()).map(|place| place.to_string()).collect())
                .collect()
        },
        |(_, labels)| labels,
    );
    let pairs = labels.into_iter().zip(lists);
    pairs
        .map(|(labels, list)| labels.into_iter().zip(list.iter()).collect())
        .collect()
}

/// How many labels all lists have; none where labels do not tell the rows of a list apart.
fn in_common(labels: &[Vec<String>]) -> Option<usize> {
    let mut common: Option<BTreeSet<&String>> = None;
    for list in labels {
        let all: BTreeSet<&String> = list.iter().collect();
        if all.len() < list.len() || list.iter().any(String::is_empty) {
            return None;
        }
        common = Some(match common {
            Some(common) => common.intersection(&all).copied().collect(),
            None => all,
        });
    }
    Some(common.map_or(0, |common| common.len()))
}

/// The texts of a row and these of its whole numbers.
fn label(row: &Value, numbers: &[&str]) -> String {
    let Some(row) = row.as_object() else {
        return String::new();
    };
    let texts = row.values().filter_map(Value::as_str).map(str::to_owned);
    let numbers = numbers.iter().filter_map(|field| row.get(*field)?.as_u64());
    let parts = texts.chain(numbers.map(|number| number.to_string()));
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(comparison: &Comparison) -> Vec<&str> {
        comparison
            .figures
            .iter()
            .map(|figure| figure.name.as_str())
            .collect()
    }

    #[test]
    fn numbers_of_both_sides_are_paired_by_where_they_stand() {
        let before =
            json!({"wall_s": 2.0, "gone": 1, "store": {"used": 10}, "timeline": [{"x": 1}]});
        let after = json!({"wall_s": 1.0, "new": 1, "store": {"used": 10}, "timeline": [{"x": 2}]});
        let comparison = Comparison::new(&[before], &[after]);
        assert_eq!(names(&comparison), ["store.used", "wall_s"]);
        assert_eq!(comparison.figures[1].ratio, Some(0.5));
        assert_eq!(comparison.figures[0].ratio, Some(1.0));
        assert_eq!(comparison.figures[1].clear(), None);
    }

    /// The rows of two reports were paired by their places: with one more size on one side, every figure after it was
    /// compared with another one's.
    #[test]
    fn rows_are_paired_by_what_they_are_about() {
        // The same for all rows, and before the size.
        let row = |policy: &str, size: u64, rate: f64| json!({"fixed": 7, "hit_rate": rate, "policy": policy, "size": size});
        let before =
            json!({"rows": [row("lru", 1000, 0.1), row("lru", 3000, 0.2), row("arc", 1000, 0.3)]});
        let after = json!({"rows": [row("lru", 3000, 0.4), row("lru", 1000, 0.1)]});
        let comparison = Comparison::new(&[before], &[after]);
        let names = names(&comparison);
        let rates: Vec<&&str> = names
            .iter()
            .filter(|name| name.ends_with("hit_rate"))
            .collect();
        assert_eq!(
            rates,
            [&"rows[lru 1000].hit_rate", &"rows[lru 3000].hit_rate"]
        );
        let named = |name: &str| comparison.figures.iter().find(|figure| figure.name == name);
        assert_eq!(named("rows[lru 3000].hit_rate").unwrap().ratio, Some(2.0));
    }

    #[test]
    fn rows_without_anything_to_tell_them_apart_are_known_by_their_place() {
        let comparison = Comparison::new(&[json!({"r": [1.5, 2.5]})], &[json!({"r": [3.0, 2.5]})]);
        assert_eq!(names(&comparison), ["r[0]", "r[1]"]);
        assert_eq!(comparison.figures[0].ratio, Some(2.0));
    }

    #[test]
    fn the_noise_is_the_larger_spread_and_a_ratio_beyond_it_is_clear() {
        let check = |before: &[f64], after: &[f64], ratio: f64, noise: f64, clear: bool| {
            let figure = Figure::new("x".to_owned(), before.to_vec(), after.to_vec());
            let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(close(figure.ratio.unwrap(), ratio), "{figure:?}");
            assert!(close(figure.noise.unwrap(), noise), "{figure:?}");
            assert_eq!(figure.clear(), Some(clear), "{figure:?}");
        };
        check(&[10.0, 9.0, 11.0], &[12.0], 1.2, 0.2, false);
        check(&[10.0, 9.0, 11.0], &[13.0], 1.3, 0.2, true);
        check(&[10.0, 9.0, 11.0], &[11.0, 11.0], 1.1, 0.2, false);
        check(&[10.0], &[8.0, 4.0], 0.6, 2.0 / 3.0, false);
        check(&[10.0, 10.0], &[10.0, 10.0], 1.0, 0.0, false);
        check(&[10.0, 10.0], &[10.1], 1.01, 0.0, true);
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        let figure = Figure::new("x".to_owned(), vec![0.0, 0.0], vec![3.0]);
        assert_eq!((figure.ratio, figure.clear()), (None, Some(true)));
        // One lies between what was measured before.
        let figure = Figure::new("x".to_owned(), vec![0.0, 0.0, 5.0], vec![1.0]);
        assert_eq!((figure.ratio, figure.clear()), (None, Some(false)));
        let figure = Figure::new("x".to_owned(), vec![0.0], vec![0.0]);
        assert_eq!(figure.ratio, Some(1.0));
        let json = serde_json::to_value(&figure).unwrap();
        assert!(json["noise"].is_null() && json["clear"].is_null(), "{json}");
    }

    #[test]
    fn texts_that_differ_are_told() {
        let before = json!({"settings": {"policy": "lru", "memory": "1GiB"}, "cut_short": null});
        let after =
            json!({"settings": {"policy": "arc", "memory": "1GiB"}, "cut_short": "interrupted"});
        let comparison = Comparison::new(&[before], &[after]);
        let told: Vec<[&str; 3]> = comparison
            .settings
            .iter()
            .map(|it| [it.name.as_str(), it.before.as_str(), it.after.as_str()])
            .collect();
        assert_eq!(
            told,
            [
                ["cut_short", "null", "interrupted"],
                ["settings.policy", "lru", "arc"]
            ]
        );
    }
}
