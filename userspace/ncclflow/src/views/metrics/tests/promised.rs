//! Tests that docs/METRICS.md lists exactly what is exported, and that dist/grafana asks for no more.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;

use super::*;
use flow::schema::GpuRow;

/// Labels that Prometheus itself adds, and that of a histogram's buckets.
const ADDED: [&str; 3] = ["instance", "job", "le"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A GPU whose driver reports everything.
fn gpus() -> GpuSamples {
    let count = Some(1);
    GpuSamples::of_rows([GpuRow {
        period_ns: Some(1_000_000_000),
        gpu_uuid: Some("GPU-1".to_owned()),
        sm_percent: count,
        memory_percent: count,
        graphics_active_percent: Some(1.0),
        sm_active_percent: Some(1.0),
        sm_occupancy_percent: Some(1.0),
        tensor_active_percent: Some(1.0),
        dram_active_percent: Some(1.0),
        nvlink_sent: Some(3),
        nvlink_received: Some(4),
        pcie_sent: Some(5),
        pcie_received: Some(6),
        sm_clock_mhz: count,
        throttled_by: vec!["swPowerCap".to_owned()],
        temperature: count,
        power_mw: count,
        xids: vec![79],
        ..GpuRow::default()
    }])
}

/// Returns the words between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Expands names: `a_{b,c}_d` is two.
fn expanded(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let (parts, after) = rest.split_once('}').unwrap();
    parts.split(',').map(|part| format!("{before}{part}{after}")).collect()
}

/// Returns the metrics with their labels, as docs/METRICS.md has them.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let (mut metrics, mut besides) = (BTreeMap::new(), Vec::new());
    for line in read("docs/METRICS.md").lines().filter(|line| line.starts_with("| `ncclflow_")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells[2] != "the same" {
            besides = quoted(cells[2]);
        }
        let of_a_rank = if cells[2] == "none" || cells[2].ends_with("alone") || cells[1].contains("_info") {
            &[][..]
        } else {
            &["comm", "rank", "pid"]
        };
        let labels: BTreeSet<String> =
            of_a_rank.iter().chain(&besides).map(|label| (*label).to_owned()).collect();
        for name in quoted(cells[1]).into_iter().flat_map(expanded) {
            assert!(metrics.insert(name.clone(), labels.clone()).is_none(), "{name} stands there twice");
        }
    }
    metrics
}

/// Returns the metrics with their types, by the names that the documentation has for them.
fn exported(text: &str) -> BTreeMap<String, String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| {
            let ending = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            (format!("{name}{ending}"), kind.to_owned())
        })
        .collect()
}

#[test]
fn the_documentation_has_what_is_exported_and_nothing_else() {
    let text = Exposition::new(live(), gpus(), || 0).encode().unwrap();
    let documented = documented();
    let exported: Vec<String> = exported(&text).into_keys().collect();
    assert_eq!(exported, documented.keys().cloned().collect::<Vec<_>>());
    // Labels of metrics that have a value here.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let suffixes = ["", "_bucket", "_sum", "_count"];
        let found = suffixes.iter().find_map(|suffix| documented.get(name.strip_suffix(suffix)?));
        let promised = found.unwrap_or_else(|| panic!("{name} is not documented"));
        let labels: BTreeSet<String> = labels
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0.to_owned()))
            .filter(|label| label != "le")
            .collect();
        assert_eq!(labels, *promised, "{series}");
    }
}

/// Returns the metrics and the labels that a query names.
fn named(query: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let metrics = query.split(|c: char| !is_word(c)).filter(|word| word.starts_with("ncclflow_")).collect();
    let mut labels = BTreeSet::new();
    for part in query.split('{').skip(1) {
        let matchers = part.split('}').next().unwrap_or_default();
        for matcher in matchers.split(',').filter(|matcher| !matcher.is_empty()) {
            labels.extend(matcher.split(['=', '!']).next().map(str::trim));
        }
    }
    for list in
        ["by (", "on (", "group_right (", "group_left ("].iter().flat_map(|word| query.split(word).skip(1))
    {
        let list = list.split(')').next().unwrap_or_default();
        labels.extend(list.split(',').map(str::trim).filter(|label| !label.is_empty()));
    }
    (metrics, labels)
}

#[test]
fn queries_are_taken_apart() {
    let (metrics, labels) =
        named("sum by (le, rank) (rate(ncclflow_a_bucket{instance=~\"$i\",wait!=\"x\"}[5m])) / ncclflow_b");
    assert_eq!(metrics, BTreeSet::from(["ncclflow_a_bucket", "ncclflow_b"]));
    assert_eq!(labels, BTreeSet::from(["le", "rank", "instance", "wait"]));
}

/// Tells whether a query may name this metric, also with a histogram's ending.
fn is_sample(name: &str, kinds: &BTreeMap<String, String>) -> bool {
    let is =
        |name: &str, histogram: bool| kinds.get(name).is_some_and(|kind| (kind == "histogram") == histogram);
    is(name, false)
        || ["_bucket", "_sum", "_count"]
            .iter()
            .any(|ending| name.strip_suffix(ending).is_some_and(|name| is(name, true)))
}

#[test]
fn the_dashboard_asks_for_metrics_and_labels_that_are_exported() {
    let dashboard: Value = serde_json::from_str(&read("dist/grafana/ncclflow.json")).unwrap();
    let kinds = exported(&Exposition::new(live(), gpus(), || 0).encode().unwrap());
    let documented = documented();
    let variables: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    let check = |query: &str| {
        let (metrics, labels) = named(query);
        assert!(!metrics.is_empty(), "{query}");
        let mut known: BTreeSet<&str> = ADDED.into_iter().collect();
        for metric in metrics {
            assert!(is_sample(metric, &kinds), "`{metric}` is not exported: {query}");
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|ending| metric.strip_suffix(ending));
            let promised = documented.get(metric).or_else(|| documented.get(base?)).unwrap();
            known.extend(promised.iter().map(String::as_str));
        }
        assert!(labels.is_subset(&known), "{labels:?} of {known:?}: {query}");
        for variable in query.split('$').skip(1) {
            let name = variable.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            assert!(name == "__rate_interval" || variables.contains(name), "${name} in {query}");
        }
    };
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            let query = variable["query"]["query"].as_str().unwrap();
            let inner =
                query.strip_prefix("label_values(").and_then(|query| query.strip_suffix(')')).unwrap();
            check(inner.rsplit_once(", ").unwrap().0);
        }
    }

    let panels = dashboard["panels"].as_array().unwrap();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36) && !panels.is_empty());
    assert!(["title", "uid"].iter().all(|key| dashboard[key].as_str().is_some_and(|text| !text.is_empty())));
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one id: {panel:#}");
        assert!(panel["type"].is_string() && panel["title"].is_string());
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        // Grafana's grid has 24 columns.
        assert!(x + w <= 24 && w > 0 && h > 0, "{panel:#}");
        let cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        cells.for_each(|cell| assert!(taken.insert(cell), "panels lie on each other: {panel:#}"));
        let targets = panel["targets"].as_array().unwrap();
        let refs: BTreeSet<&str> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert!(refs.len() == targets.len() && !refs.is_empty(), "{panel:#}");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            check(query);
            // What a legend shows must be left in the result; `group_right` leaves all labels of its right
            // side.
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            for label in legend.split("{{").skip(1).map(|part| part.split("}}").next().unwrap().trim()) {
                assert!(
                    query.contains(label) || query.contains("group_right"),
                    "{label} in the legend of {query}"
                );
            }
        }
    }
}
