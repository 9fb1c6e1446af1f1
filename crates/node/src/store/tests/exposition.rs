//! Both text forms of metrics, read by the rules of each.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_trace::within;
use slackwater_wire::{TraceContext, TraceId, Traceparent};

use super::*;

/// What was read of a family.
#[derive(Default)]
struct Family {
    kind: String,
    samples: Vec<Sample>,
}

struct Sample {
    /// What follows the name of the family.
    suffix: String,
    labels: BTreeMap<String, String>,
    value: f64,
    exemplar: Option<Exemplar>,
}

struct Exemplar {
    labels: BTreeMap<String, String>,
    value: f64,
    at: f64,
}

/// Reads a text by the rules of its form; panics at what breaks one.
fn read(text: &str, format: MetricsFormat) -> BTreeMap<String, Family> {
    let is_open = format == MetricsFormat::OpenMetrics;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut present, mut series) = (String::new(), BTreeSet::new());
    let body = match is_open {
        true => text.strip_suffix("# EOF\n").expect("its end is marked"),
        false => text,
    };
    assert!(body.ends_with('\n') && !body.contains("# EOF"));
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default();
            let (what, name, said) = (word(), word(), word());
            if what == "HELP" {
                present = name.to_owned();
                let known = families.insert(present.clone(), Family::default());
                assert!(known.is_none(), "a family in two places: {line}");
            }
            let family = families.get_mut(&present).expect("a help comes first");
            assert_eq!(name, present, "{line}");
            assert!(family.samples.is_empty(), "behind its samples: {line}");
            match what {
                "HELP" => assert!(!said.is_empty()),
                "TYPE" => family.kind = said.to_owned(),
                "UNIT" => assert!(is_open && name.ends_with(&format!("_{said}")), "{line}"),
                _ => panic!("a comment of no kind: {line}"),
            }
            continue;
        }
        let (sample, exemplar) = match line.split_once(" # ") {
            Some((sample, exemplar)) => (sample, Some(exemplar)),
            None => (line, None),
        };
        let (identity, value) = sample.rsplit_once(' ').expect("a name and a value");
        assert!(series.insert(identity.to_owned()), "twice: {line}");
        let (name, labels) = labels_of(identity);
        let family = families.get_mut(&present).expect("a family comes first");
        let suffix = name.strip_prefix(&present).expect("a sample of the family");
        let suffixes: &[&str] = match (family.kind.as_str(), is_open) {
            ("counter", true) => &["_total"],
            ("counter" | "gauge", _) => &[""],
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            (kind, _) => panic!("no kind: {kind}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        let exemplar = exemplar.map(|text| {
            assert!(is_open && suffix == "_bucket", "{line}");
            let (labels, rest) = text.split_once("} ").expect("labels in braces");
            let (_, labels) = labels_of(&format!("{labels}}}"));
            let (value, at) = rest.split_once(' ').expect("a value and a time");
            Exemplar {
                labels,
                value: value.parse().unwrap(),
                at: at.parse().unwrap(),
            }
        });
        family.samples.push(Sample {
            suffix: suffix.to_owned(),
            labels,
            value: value.parse().unwrap(),
            exemplar,
        });
    }
    let histograms = families.values().filter(|it| it.kind == "histogram");
    histograms.for_each(|family| check_histogram(family, is_open));
    families
}

/// A name, and the labels behind it.
fn labels_of(identity: &str) -> (&str, BTreeMap<String, String>) {
    let Some((name, labels)) = identity.split_once('{') else {
        return (identity, BTreeMap::new());
    };
    let labels = labels.strip_suffix('}').expect("braces end");
    // No label of ours has a comma or a quote in its value but these, between labels.
    let each = labels.split("\",").map(|label| {
        let (name, value) = label.split_once("=\"").expect("a name and a value");
        (name.to_owned(), value.trim_end_matches('"').to_owned())
    });
    (name, each.collect())
}

fn check_histogram(family: &Family, is_open: bool) {
    let mut series: BTreeMap<_, Vec<&Sample>> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        series.entry(labels).or_default().push(sample);
    }
    for samples in series.values() {
        let (buckets, others): (Vec<&Sample>, Vec<&Sample>) = samples
            .iter()
            .partition(|sample| sample.suffix == "_bucket");
        let [sum, count] = others.as_slice() else {
            panic!("a sum and a count");
        };
        assert_eq!((&*sum.suffix, &*count.suffix), ("_sum", "_count"));
        let (mut below, mut counted) = (0.0, 0.0);
        for bucket in &buckets {
            let text = bucket.labels["le"].as_str();
            let end: f64 = text.parse().unwrap();
            assert!(end > below && bucket.value >= counted, "{text}");
            let is_usual = [
                "5e-06", "1e-05", "2.5e-05", "5e-05", "0.0001", "1.0", "10.0",
            ];
            if is_open && end.fract() == 0.0 && end.is_finite() || is_open && end <= 1e-4 {
                assert!(is_usual.contains(&text), "{text}");
            }
            if let Some(exemplar) = &bucket.exemplar {
                assert!(exemplar.value > below && exemplar.value <= end, "{text}");
                let labels = exemplar.labels.iter();
                let letters = labels.map(|(name, value)| name.len() + value.len());
                assert!(letters.sum::<usize>() <= 128);
                // After 2020, in seconds.
                assert!(exemplar.at > 1.6e9 && exemplar.at < 1e11, "{}", exemplar.at);
            }
            (below, counted) = (end, bucket.value);
        }
        let last = buckets.last().expect("buckets");
        assert_eq!(last.labels["le"], "+Inf");
        assert_eq!(last.value, count.value);
    }
}

fn exemplars(families: &BTreeMap<String, Family>, name: &str) -> Vec<TraceId> {
    let samples = families[name].samples.iter();
    let exemplars = samples.filter_map(|sample| sample.exemplar.as_ref());
    let ids = exemplars.map(|exemplar| {
        let id = u128::from_str_radix(&exemplar.labels["trace_id"], 16).unwrap();
        TraceContext::new(id, 1).unwrap().trace
    });
    ids.collect()
}

#[test]
fn both_forms_keep_their_rules_and_say_the_same() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    store.put(b"a", b"value", &PutOptions::default()).unwrap();
    store.get(b"a", &GetOptions::default()).unwrap();
    let plain = store.metrics_text(MetricsFormat::Prometheus);
    let open = store.metrics_text(MetricsFormat::OpenMetrics);
    let (plain, open) = (
        read(&plain, MetricsFormat::Prometheus),
        read(&open, MetricsFormat::OpenMetrics),
    );
    assert_eq!(plain.len(), open.len());
    for (name, family) in &plain {
        let other = match family.kind.as_str() {
            "counter" => &open[name.strip_suffix("_total").unwrap()],
            _ => &open[name],
        };
        assert_eq!(family.kind, other.kind, "{name}");
        // Other tests of this process wait meanwhile, at places that have none before the first.
        if !name.starts_with("slackwater_wait") {
            assert_eq!(family.samples.len(), other.samples.len(), "{name}");
        }
    }
    let hits = &open["slackwater_hits"].samples[0];
    assert_eq!((hits.value, hits.labels["tier"].as_str()), (1.0, "memory"));
    let none = exemplars(&open, "slackwater_call_seconds");
    assert_eq!(none, [], "nothing was traced");
}

#[test]
fn the_last_traced_time_of_a_bucket_is_its_exemplar_and_only_openmetrics_shows_it() {
    let store = Store::open(memory_only(ByteSize::mib(2))).unwrap();
    store.put(b"a", b"value", &PutOptions::default()).unwrap();
    let get = || store.get(b"a", &GetOptions::default()).unwrap();
    let traces: Vec<TraceContext> = (1..=3)
        .map(|trace| TraceContext::new(trace << 64, 9).unwrap())
        .collect();
    for trace in &traces {
        within(Traceparent(Some(*trace)), get);
        get();
    }
    let text = store.metrics_text(MetricsFormat::OpenMetrics);
    let families = read(&text, MetricsFormat::OpenMetrics);
    for name in ["slackwater_call_seconds", "slackwater_read_phase_seconds"] {
        let found = exemplars(&families, name);
        let last = traces[2].trace;
        assert!(found.contains(&last), "{name}: {found:?}");
        let known = |id: &TraceId| traces.iter().any(|trace| trace.trace == *id);
        assert!(found.iter().all(known), "{name}: {found:?}");
    }
    let plain = store.metrics_text(MetricsFormat::Prometheus);
    read(&plain, MetricsFormat::Prometheus);
    assert!(!plain.contains("trace_id"), "{plain}");
}

#[test]
fn the_master_of_a_pool_keeps_the_rules_too() {
    let options = crate::pool::MasterOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Default::default()
    };
    let master = crate::pool::MasterServer::start(&Config::default(), &options).unwrap();
    let operated = master.operated();
    for format in [MetricsFormat::Prometheus, MetricsFormat::OpenMetrics] {
        let families = read(&crate::Operated::metrics_text(&operated, format), format);
        assert!(families.contains_key("slackwater_nodes"));
    }
}
