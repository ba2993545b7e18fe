//! NCCL libraries of processes: what is reported of each, and the layouts by which memory is read.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context as _, Result, bail};
use inspect::{
    process::{LibraryId, MappedLibrary, Users},
    resolver::{self, What},
};
use nccl_library::{
    fields::{IntField, comm},
    layouts::Layouts,
    nccl::NcclVersion,
    symbols::{DebugFiles, LayoutSource, ProblemKind},
};

use super::{
    LibraryReport, absent::PeerTable, comm_layout::CommLayout, connections::ConnectionLayout, mem::MemLayout,
    nics::NicLayout, one_sided::OneSidedLayout, own_list::OwnList, pending::PendingLayout,
    proxy::ProxyLayout, ras_peers::RasPeers, set_up::SetUpLayout,
};

#[derive(Debug)]
pub(super) struct Layout {
    /// Version of the library, as far as it is known.
    pub(super) version: Option<String>,
    /// The NCCL library; `None` for memory that somebody has made up.
    pub(super) library: Option<LibraryId>,
    pub(super) comm: CommLayout,
    pub(super) connections: ConnectionLayout,
    pub(super) proxy: ProxyLayout,
    pub(super) pending: PendingLayout,
    pub(super) one_sided: OneSidedLayout,
    pub(super) bus_id: Option<IntField>,
    pub(super) peers: Option<PeerTable>,
    pub(super) own_list: Option<OwnList>,
    pub(super) ras_peers: Option<RasPeers>,
    pub(super) set_up: SetUpLayout,
    pub(super) nics: NicLayout,
    /// `None` where fields are not known.
    pub(super) mem: Option<MemLayout>,
}

/// Libraries that were resolved already: several processes map the same one.
#[derive(Debug)]
pub(super) struct Libraries {
    debug_files: DebugFiles,
    known: BTreeMap<LibraryId, (LibraryReport, Option<Arc<Layout>>)>,
    pub(super) users: Users,
}

impl Libraries {
    pub(super) fn new(debug_files: DebugFiles) -> Self {
        Self { debug_files, known: BTreeMap::new(), users: Users::read() }
    }

    /// Returns the number of libraries that are known.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns the report of a library, and its layout if it has one.
    pub(super) fn resolve(&mut self, file: &MappedLibrary) -> (LibraryReport, Option<Arc<Layout>>) {
        if let Some(known) = self.known.get(&file.id) {
            return known.clone();
        }
        let mut report = LibraryReport { path: file.path.display().to_string(), ..LibraryReport::default() };
        let layout = self.layout(file, &mut report);
        report.unusable = layout.as_ref().err().map(|error| format!("{error:#}"));
        let found = (report, layout.ok().map(Arc::new));
        self.known.insert(file.id, found.clone());
        found
    }

    fn layout(&self, file: &MappedLibrary, report: &mut LibraryReport) -> Result<Layout> {
        let resolved = resolver::resolve(file, What::Dump, &self.debug_files);
        let resolution = resolved.context("reading the library")?.resolution;
        report.version = resolution.nccl_version.map(|version| version.to_string());
        report.build_id = resolution.build_id.as_ref().map(ToString::to_string);
        report.processor = Some(resolution.machine);
        report.symbols = Some(resolution.symbol_source);
        report.layouts_from = Some(resolution.layouts_from);
        if resolution.layouts_from == LayoutSource::Unknown {
            let why = resolution.problems.iter().find(|problem| problem.kind == ProblemKind::StructMissing);
            let why = why.map_or("there is no debugging information", |problem| &problem.what);
            bail!("its struct layouts are not known: {why}");
        }
        let layout = Layout::of(&resolution.layouts, resolution.nccl_version)?;
        Ok(Layout {
            library: Some(file.id),
            own_list: OwnList::of(&resolution),
            ras_peers: RasPeers::of(&resolution),
            nics: NicLayout::of(&resolution.layouts, &resolution.variables),
            ..layout
        })
    }
}

impl Layout {
    /// Makes a layout without the list of communicators that the library itself keeps.
    pub(super) fn of(layouts: &Layouts, version: Option<NcclVersion>) -> Result<Self> {
        Ok(Self {
            version: version.map(|version| version.to_string()),
            library: None,
            comm: CommLayout::new(layouts, version)?,
            connections: ConnectionLayout::new(layouts)?,
            proxy: ProxyLayout::new(layouts)?,
            pending: PendingLayout::new(layouts),
            one_sided: OneSidedLayout::new(layouts),
            bus_id: comm::BUS_ID.find_int(layouts),
            peers: PeerTable::new(layouts),
            own_list: None,
            ras_peers: None,
            set_up: SetUpLayout::new(layouts),
            nics: NicLayout::of(layouts, &BTreeMap::new()),
            mem: MemLayout::new(layouts).ok(),
        })
    }
}
