//! Shares of tenants in what processes are held with, and in the kernel's buffers.

use std::mem;

use flow::session::{Budget, WhoseBudget};
use inspect::process::Process;

use super::{
    super::{pidfd::HeldProcess, recorder::Recording},
    Follower,
};

impl Follower<'_> {
    /// Holds the process, if its tenant does not hold too many already.
    pub(super) fn hold(
        &mut self,
        process: Process,
        tenant: Option<u32>,
        recording: &mut Recording<'_>,
    ) -> HeldProcess {
        let is_held = self.has_room(tenant);
        self.held += usize::from(is_held);
        if !is_held {
            let tenant = tenant.and_then(|tenant| self.tenants.get(tenant));
            let whose = tenant.map_or_else(
                || WhoseBudget::Process(process.pid()),
                |tenant| WhoseBudget::Tenant(tenant.to_string()),
            );
            recording.report.over_budget.add(Budget::Descriptors, whose, "", 1);
        }
        HeldProcess::new(process, is_held)
    }

    /// Tells whether a process of this tenant, which counts already, may take descriptors.
    pub(super) fn has_room(&self, tenant: Option<u32>) -> bool {
        let of_tenant = tenant.map_or(0, |tenant| self.tenants.processes(tenant));
        self.limits.have_room(self.held, of_tenant.saturating_sub(1))
    }

    /// Tells the kernel side the tenant of a process.
    pub(super) fn say_tenant(&mut self, pid: u32, tenant: u32, recording: &mut Recording<'_>) {
        self.is_to_be_shared = true;
        // Where this fails the process is its own tenant.
        let _ = recording.attachment.object.set_tenant(pid, tenant);
    }

    /// Shares the kernel's buffers out among the current tenants.
    pub(super) fn share_out(&mut self, recording: &mut Recording<'_>) {
        if !mem::take(&mut self.is_to_be_shared) {
            return;
        }
        let processes = self.processes.iter().filter_map(|(pid, followed)| Some((*pid, followed.tenant?)));
        if let Err(error) = recording.attachment.object.share_out(processes) {
            recording.report.errors.push(format!("sharing the kernel's buffers out: {error:#}"));
        }
    }

    /// Reports the tenants that were refused room in the kernel's buffers.
    pub(in crate::record) fn report_shares(&self, recording: &mut Recording<'_>) {
        let Ok(refused) = recording.attachment.object.refused() else { return };
        for (number, times) in refused {
            let own = number & !(u32::MAX >> 1) != 0;
            let whose = match self.tenants.get(number) {
                _ if own => WhoseBudget::Process(number & (u32::MAX >> 1)),
                Some(tenant) => WhoseBudget::Tenant(tenant.to_string()),
                None => WhoseBudget::Tenant("one that has gone".to_owned()),
            };
            recording.report.over_budget.add(Budget::KernelBuffer, whose, "", times);
        }
    }
}
