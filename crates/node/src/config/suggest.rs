/// What to say beside a name that there is not: the one that was most likely meant.
pub(super) fn hint<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    nearest(word, candidates)
        .map(|near| format!(", did you mean `{near}`?"))
        .unwrap_or_default()
}

/// The candidate that a mistyped word most likely meant: at most a third of its letters away, two at least.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits that turn `a` into `b`: insertions, deletions, substitutions, and swaps of neighbours (the optimal string
/// alignment distance of Damerau, 1964).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        let check = |a: &str, b: &str, edits: usize| assert_eq!(distance(a, b), edits, "{a} {b}");
        check("", "abc", 3);
        check("memory", "memory", 0);
        check("memroy", "memory", 1);
        check("memori", "memory", 1);
        check("memor", "memory", 1);
        check("kitten", "sitting", 3);
    }

    #[test]
    fn only_near_words_are_suggested() {
        let words = ["memory", "ssd", "promotion.threshold"];
        assert_eq!(nearest("memroy", words.into_iter()), Some("memory"));
        assert_eq!(
            nearest("promotion.treshhold", words.into_iter()),
            Some("promotion.threshold")
        );
        assert_eq!(nearest("colour", words.into_iter()), None);
    }
}
