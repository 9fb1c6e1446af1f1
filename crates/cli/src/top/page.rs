use slackwater_base::ByteSize;

use crate::printable::printable;

use super::sample::{SegmentLine, Snapshot};

/// Cells of the bar that shows how full a segment is.
const BAR: usize = 20;

/// The page, no wider and no longer than the terminal.
pub(super) fn lines(snapshot: &Snapshot, width: usize, height: usize) -> Vec<String> {
    let mut lines = vec![
        head(snapshot),
        reads(snapshot),
        writes(snapshot),
        String::new(),
    ];
    lines.push(format!(
        "{:<24} {:>11} {:<7} {:<10} {:>10} of {:<10} FULL (KEPT BETWEEN)",
        "SEGMENT", "NODE", "LINK", "STATUS", "USED", "SIZE"
    ));
    lines.extend(snapshot.segments.iter().map(segment));
    if !snapshot.keys.is_empty() {
        lines.push(String::new());
        lines.push("KEYS".to_owned());
        lines.extend(snapshot.keys.iter().map(key));
    }
    if !snapshot.jobs.is_empty() {
        lines.push(String::new());
        lines.push("JOBS".to_owned());
        lines.extend(snapshot.jobs.iter().map(job));
    }
    lines.truncate(height.max(1));
    for line in &mut lines {
        *line = printable(line);
        if let Some((end, _)) = line.char_indices().nth(width) {
            line.truncate(end);
        }
    }
    lines
}

fn head(snapshot: &Snapshot) -> String {
    let clients = snapshot
        .clients
        .map(|clients| format!(", {clients} clients"));
    let clients = clients.unwrap_or_default();
    format!(
        "slackwater: {} objects{clients}   (q quits)",
        snapshot.objects
    )
}

fn reads(snapshot: &Snapshot) -> String {
    let [memory, ssd, missed] = snapshot.reads;
    let ratios = match snapshot.hit_ratios {
        Some([memory, ssd]) => format!(
            "hits {:.1} % memory, {:.1} % SSD",
            memory * 100.0,
            ssd * 100.0
        ),
        None => "no reads".to_owned(),
    };
    format!(
        "reads {:.0}/s (memory {memory:.0}, SSD {ssd:.0}, missed {missed:.0}), {}/s; {ratios}",
        memory + ssd + missed,
        size(snapshot.read_bytes),
    )
}

fn writes(snapshot: &Snapshot) -> String {
    let [puts, bytes] = snapshot.puts;
    format!(
        "puts {puts:.0}/s, {}/s; evictions {:.0}/s, offloads {:.0}/s, promotions {:.0}/s",
        size(bytes),
        snapshot.evictions,
        snapshot.offloads,
        snapshot.promotions,
    )
}

fn segment(line: &SegmentLine) -> String {
    let share = match line.capacity {
        0 => 0.0,
        capacity => (line.used as f64 / capacity as f64).min(1.0),
    };
    let full = (share * BAR as f64).round() as usize;
    let marks = line.watermarks.map(|marks| marks.map(|mark| 100.0 * mark));
    let marks = marks.map(|[low, high]| format!(" ({low:.0}-{high:.0} %)"));
    format!(
        "{:<24} {:>11} {:<7} {:<10} {:>10} of {:<10} [{:<BAR$}] {:>3.0} %{}",
        line.name,
        line.node,
        line.presence,
        line.status,
        ByteSize(line.used).to_string(),
        ByteSize(line.capacity).to_string(),
        "#".repeat(full),
        share * 100.0,
        marks.unwrap_or_default(),
    )
}

fn key((node, print): &(u64, String)) -> String {
    format!("node {node:<11} {print}")
}

fn job(job: &serde_json::Value) -> String {
    let number = |name: &str| job[name].as_u64().unwrap_or(0);
    format!(
        "{} {}: {} carried in {} values, {} under way, {} failed, {} left",
        job["job_id"].as_str().unwrap_or_default(),
        job["work"]["type"].as_str().unwrap_or_default(),
        ByteSize(number("migrated_bytes")),
        number("succeeded_units"),
        number("active_units"),
        number("failed_units"),
        ByteSize(number("left_bytes")),
    )
}

fn size(bytes: f64) -> ByteSize {
    ByteSize(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::tests::sample;

    #[test]
    fn the_page_fits_the_terminal() {
        let snapshot = Snapshot::between(&sample(1.0, 0, 0), &sample(2.0, 40, 0));
        let whole = lines(&snapshot, 200, 100);
        assert!(whole[0].contains("5 objects, 3 clients"), "{whole:?}");
        assert!(
            whole[1].contains("hits 66.7 % memory, 33.3 % SSD"),
            "{whole:?}"
        );
        let segment = whole
            .iter()
            .find(|line| line.starts_with("memory-300"))
            .unwrap();
        assert!(
            segment.ends_with("[#####               ]  25 % (25-50 %)"),
            "{segment}"
        );
        let key = whole.iter().find(|line| line.starts_with("node 4 "));
        assert!(key.unwrap().ends_with(" 6668-7aad-f862-bd77"), "{whole:?}");
        assert!(whole.last().unwrap().starts_with("7 "), "{whole:?}");
        for (width, height) in [(10, 3), (0, 0), (80, 24)] {
            let cut = lines(&snapshot, width, height);
            assert!(cut.len() <= height.max(1));
            assert!(cut.iter().all(|line| line.chars().count() <= width));
        }
    }
}
