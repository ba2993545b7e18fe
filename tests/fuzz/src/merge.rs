//! What is done with a dump of another host (`dump --merge`): one, or several with a byte of 0 in between.

use dump::{self, DumpReport};

/// Merges, judges and renders. Errors are fine.
///
/// # Panics
/// If it takes too long, or gets control characters into a report.
pub fn use_dumps(input: &[u8]) {
    super::in_time(input.len(), || {
        let reports = input.split(|byte| *byte == 0).map(serde_json::from_slice::<DumpReport>);
        let reports: Vec<DumpReport> = reports.filter_map(Result::ok).collect();
        let merged = dump::merge(reports);
        let _state = merged.state();
        // What reaches a terminal goes through the writer that replaces control characters.
        let text = flow::text::plain(&dump::render(&merged, true, 60)).into_owned();
        let hostile = text.chars().find(|char| char.is_control() && !matches!(char, '\n' | '\t'));
        assert_eq!(hostile, None, "a control character in the report");
    });
}
