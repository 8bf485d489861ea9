//! What the GPUs of a virtual memory share.

use std::sync::Arc;

use crate::{
    broadcast::Arrays,
    local_home::LocalHome,
    plan::{QueuePlan, Settings},
    region::Regions,
};

/// Settings, regions and homes: whatever belongs to no GPU alone. What went wrong on a GPU is that GPU's.
pub(crate) struct Shared {
    settings: Arc<Settings>,
    /// On all GPUs, so that no two of them lie over the same memory.
    regions: Arc<Regions>,
    /// Homes in this host's memory that can be lost one by one.
    host_homes: Vec<Arc<LocalHome>>,
    broadcasts: Arc<Arrays>,
}

impl Shared {
    /// No region yet.
    pub fn new(settings: Settings, host_homes: u32) -> Self {
        Self {
            settings: Arc::new(settings),
            regions: Arc::default(),
            host_homes: LocalHome::several(host_homes),
            broadcasts: Arc::default(),
        }
    }

    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Arrays of which several GPUs hold copies.
    pub fn broadcasts(&self) -> &Arc<Arrays> {
        &self.broadcasts
    }

    pub fn host_homes(&self) -> &[Arc<LocalHome>] {
        &self.host_homes
    }

    /// Those that a GPU with such queue pairs reaches one by one.
    pub fn host_homes_of(&self, plan: &QueuePlan) -> &[Arc<LocalHome>] {
        match plan.host_homes {
            1 => &[],
            _ => &self.host_homes,
        }
    }
}
