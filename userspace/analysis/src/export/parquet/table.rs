//! The tables, and their columns: those of the schema's rows.

use flow::schema::{
    ApiCallRow, ClockReport, Column, CommunicatorReport, FleetColumns, FleetComm, FleetHost, FleetMessage,
    LinkSecond, LossReport, MessageRow, OpRow, OtherCallRow,
};

/// Column that readers take from the name of the partition's folder.
const PARTITIONED: &str = "host";

/// Columns of a communicator in `session.json` that describe line files made while recording.
const OF_LINES: [&str; 8] = [
    "folder",
    "collectives",
    "sendsReceives",
    "launches",
    "proxyFlowLines",
    "flowStepsLines",
    "apiLines",
    "lostLines",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Table {
    Op,
    Message,
    Call,
    Comm,
    Host,
    Link1s,
}

impl Table {
    pub(super) const ALL: [Self; 6] =
        [Self::Op, Self::Message, Self::Call, Self::Comm, Self::Host, Self::Link1s];

    /// Returns its folder's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Op => "op",
            Self::Message => "message",
            Self::Call => "call",
            Self::Comm => "comm",
            Self::Host => "host",
            Self::Link1s => "link_1s",
        }
    }

    /// Returns the kinds of rows that one row of the table is made of. A column can be in several of them.
    fn parts(self) -> &'static [&'static [Column]] {
        match self {
            Self::Op => &[FleetColumns::COLUMNS, OpRow::COLUMNS],
            Self::Message => &[FleetColumns::COLUMNS, FleetMessage::COLUMNS, MessageRow::COLUMNS],
            Self::Call => &[FleetColumns::COLUMNS, ApiCallRow::COLUMNS, OtherCallRow::COLUMNS],
            Self::Comm => &[FleetComm::COLUMNS, CommunicatorReport::COLUMNS],
            Self::Host => &[FleetHost::COLUMNS, ClockReport::COLUMNS, LossReport::COLUMNS],
            Self::Link1s => &[LinkSecond::COLUMNS],
        }
    }

    /// Returns the columns that row groups are sorted by; rows equal in them keep their order of arrival.
    fn sorted_by(self) -> &'static [&'static str] {
        match self {
            Self::Op | Self::Message => &["communicator", "seq", "rank", "channel"],
            Self::Call => &["communicator", "call", "rank"],
            Self::Comm => &["communicator", "rank"],
            Self::Host => &["recording"],
            Self::Link1s => &["communicator", "rank", "op", "peer", "channel", "second"],
        }
    }
}

/// Columns of a table, and where values go.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) table: Table,
    pub(super) columns: Vec<&'static Column>,
    /// For each part, the table's column for each of its columns, if there is one.
    pub(super) parts: Vec<Vec<Option<usize>>>,
    /// Sort columns.
    pub(super) sorted_by: Vec<usize>,
}

impl Layout {
    pub(super) fn of(table: Table) -> Self {
        let mut columns: Vec<&'static Column> = Vec::new();
        let mut place = |column: &'static Column| {
            if column.key == PARTITIONED || OF_LINES.contains(&column.key) {
                return None;
            }
            Some(columns.iter().position(|known| known.key == column.key).unwrap_or_else(|| {
                columns.push(column);
                columns.len() - 1
            }))
        };
        let parts = table.parts().iter().map(|part| part.iter().map(&mut place).collect()).collect();
        let find = |key: &&str| columns.iter().position(|column| column.key == *key);
        let sorted_by = table.sorted_by().iter().filter_map(find).collect();
        Self { table, columns, parts, sorted_by }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn columns_are_told_apart_by_readers_that_ignore_case() {
        for table in Table::ALL {
            let layout = Layout::of(table);
            let mut keys: Vec<String> =
                layout.columns.iter().map(|column| column.key.to_lowercase()).collect();
            keys.extend(["job".to_owned(), PARTITIONED.to_owned()]);
            assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "{table:?}");
            assert_eq!(layout.sorted_by.len(), table.sorted_by().len(), "{table:?}");
        }
    }

    /// A call's line has the address of its communicator under `comm`, and ours must not take its place.
    #[test]
    fn lines_have_no_column_of_ours() {
        for (ours, row) in [
            (FleetColumns::COLUMNS, OpRow::COLUMNS),
            (FleetColumns::COLUMNS, MessageRow::COLUMNS),
            (FleetMessage::COLUMNS, MessageRow::COLUMNS),
            (FleetColumns::COLUMNS, ApiCallRow::COLUMNS),
            (FleetColumns::COLUMNS, OtherCallRow::COLUMNS),
            (FleetHost::COLUMNS, ClockReport::COLUMNS),
            (FleetHost::COLUMNS, LossReport::COLUMNS),
        ] {
            let known = ours.iter().find(|column| row.iter().any(|other| other.key == column.key));
            assert!(known.is_none(), "{known:?}");
        }
    }

    #[test]
    fn a_column_of_several_rows_is_of_one_type() {
        for table in Table::ALL {
            let layout = Layout::of(table);
            for (part, places) in table.parts().iter().zip(&layout.parts) {
                for (column, place) in part.iter().zip(places) {
                    let known = place.map(|place| layout.columns[place]);
                    assert!(known.is_none_or(|known| known.cells == column.cells), "{}", column.key);
                }
            }
        }
    }
}
