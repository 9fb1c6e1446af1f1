//! The page with the curves.

use slackwater_base::ByteSize;
use slackwater_report::{Axis, Chart, Line, Mark, Page, Scale, Table, Tile, Tone, Unit};

use super::Answer;
use super::models::MODELS;
use super::plan::Point;

/// Lines of a chart; more cannot be told apart.
const LINES_MAX: usize = 6;

pub(super) fn page(answer: &Answer) -> Page {
    let mut charts = vec![
        over_memory(
            answer,
            "Hits by memory",
            "In both tiers together, for SSDs of several sizes.",
            |point| point.hit_rate,
        ),
        over_memory(
            answer,
            "Hits in memory",
            "Those that need no read from SSD.",
            |point| point.memory_hit_rate,
        ),
        over_ssd(answer),
    ];
    if answer.facts.prefill_tokens_per_s.is_some() && answer.facts.seconds.is_some() {
        charts.push(Chart {
            y: Axis::new("seconds saved an hour", Unit::Seconds),
            ..over_memory(
                answer,
                "Prefill time saved",
                "In an hour of such load, after the time that blocks take from SSD.",
                |point| point.seconds_saved_per_hour.unwrap_or_default(),
            )
        });
    }
    let mut tables = answer.tables();
    tables.push(models());
    let mut notes = answer.sentences();
    if let Some(configuration) = &answer.configuration {
        notes.push(format!(
            "As a file for --config: {}",
            configuration.replace('\n', " ").trim()
        ));
    }
    Page {
        title: format!("Memory and SSD for {}", answer.source),
        lead: format!(
            "{} Replayed against the policy {} without I/O; a block counts as a hit only when all blocks before it in its \
             chain were there too.",
            answer.lead(),
            answer.policy
        ),
        tiles: tiles(answer),
        charts,
        tables,
        notes,
        ..Page::default()
    }
}

fn tiles(answer: &Answer) -> Vec<Tile> {
    let Some(point) = &answer.chosen else {
        return Vec::new();
    };
    let saved = match (point.seconds_saved_per_hour, point.tokens_saved_per_hour) {
        (Some(seconds), _) => Unit::Seconds.format(seconds),
        (None, Some(tokens)) => Unit::Count.format(tokens) + " tokens",
        (None, None) => "–".to_owned(),
    };
    vec![
        Tile::new(
            "memory",
            ByteSize(point.memory_bytes).to_string(),
            "the smallest within 2 % of the best",
        ),
        Tile::new("SSD", ByteSize(point.ssd_bytes).to_string(), "below it"),
        Tile::new("hits", Unit::Share.format(point.hit_rate), "of all blocks"),
        Tile::new("prefill saved", saved, "in an hour"),
    ]
}

fn sizes(label: &str) -> Axis {
    Axis {
        scale: Scale::Log,
        ..Axis::new(label, Unit::Bytes)
    }
}

/// A line for each size of SSD.
fn over_memory(answer: &Answer, title: &str, note: &str, value: impl Fn(&Point) -> f64) -> Chart {
    let rows: Vec<&[Point]> = answer.rows().collect();
    let columns = rows.first().map_or(0, |row| row.len());
    let line = |(column, tone): (usize, Tone)| Line {
        name: format!("SSD {}", ByteSize(rows[0][column].ssd_bytes)),
        tone,
        mark: Mark::Solid,
        points: rows
            .iter()
            .map(|row| (row[column].memory_bytes as f64, value(&row[column])))
            .collect(),
    };
    Chart {
        title: title.to_owned(),
        note: note.to_owned(),
        x: sizes("memory"),
        y: Axis::new("share of blocks", Unit::Share),
        lines: spread(columns)
            .into_iter()
            .zip(Tone::SERIES)
            .map(line)
            .collect(),
    }
}

/// A line for each size of memory.
fn over_ssd(answer: &Answer) -> Chart {
    let rows: Vec<&[Point]> = answer.rows().collect();
    let line = |(row, tone): (usize, Tone)| Line {
        name: format!("memory {}", ByteSize(rows[row][0].memory_bytes)),
        tone,
        mark: Mark::Solid,
        points: rows[row]
            .iter()
            .filter(|point| point.ssd_bytes > 0)
            .map(|point| (point.ssd_bytes as f64, point.hit_rate))
            .collect(),
    };
    Chart {
        title: "Hits by SSD".to_owned(),
        note: "In both tiers together, for several sizes of memory.".to_owned(),
        x: sizes("SSD"),
        y: Axis::new("share of blocks", Unit::Share),
        lines: spread(rows.len())
            .into_iter()
            .zip(Tone::SERIES)
            .map(line)
            .collect(),
    }
}

/// Up to [`LINES_MAX`] of `count` places, from the first to the last.
fn spread(count: usize) -> Vec<usize> {
    if count <= LINES_MAX {
        return (0..count).collect();
    }
    let last = LINES_MAX - 1;
    (0..LINES_MAX)
        .map(|line| line * (count - 1) / last)
        .collect()
}

fn models() -> Table {
    let rows = MODELS.iter().map(|model| {
        let bytes = model.kv_bytes_per_token();
        vec![model.name.to_owned(), bytes.to_string(), model.source()]
    });
    Table::new(
        "KV cache of public models",
        &["model", "bytes a token", "from"],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_from_the_first_size_to_the_last() {
        assert_eq!(spread(3), [0, 1, 2]);
        assert_eq!(spread(8), [0, 1, 2, 4, 5, 7]);
        assert_eq!(spread(0), Vec::<usize>::new());
    }
}
