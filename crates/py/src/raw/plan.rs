//! How values are put, made once from a configuration and used by many calls.

use std::ops::Range;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use slackwater_base::hash64;
use slackwater_remote::{PutOptions, Stored};
use slackwater_wire::{Pin, PutMode};

/// Options of puts. `groups` has a name for each key of a call, where "" is no group. With `near`, the values of a call are
/// wished to be on one node: the one of this process if it lends memory, and otherwise that of the first.
#[pyclass(frozen, module = "slackwater._native")]
pub(crate) struct RawPlan {
    pub(crate) options: PutOptions,
    pub(crate) groups: Option<Vec<Option<u64>>>,
    pub(crate) near: bool,
    /// Whether the code of a value that was there, and stays, is 1.
    tells_existing: bool,
}

#[pymethods]
impl RawPlan {
    #[new]
    #[pyo3(signature = (*, upsert=false, replicas=1, preferred=Vec::new(), pin="none", pin_milliseconds=None, groups=None, near=false))]
    fn new(
        upsert: bool,
        replicas: u32,
        preferred: Vec<String>,
        pin: &str,
        pin_milliseconds: Option<u64>,
        groups: Option<Vec<String>>,
        near: bool,
    ) -> PyResult<Self> {
        let pin = match pin {
            "none" => Pin::None,
            "soft" => Pin::Soft(pin_milliseconds.map(Duration::from_millis)),
            "hard" => Pin::Hard,
            other => return Err(PyValueError::new_err(format!("pin: `{other}`"))),
        };
        let mode = if upsert {
            PutMode::Upsert
        } else {
            PutMode::Create
        };
        let group = |name: String| (!name.is_empty()).then(|| hash64(name.as_bytes()));
        Ok(Self {
            options: PutOptions {
                mode,
                replicas,
                preferred,
                pin,
                ..PutOptions::default()
            },
            groups: groups.map(|names| names.into_iter().map(group).collect()),
            near,
            tells_existing: false,
        })
    }

    /// Whether values that are there are replaced.
    #[getter]
    fn upsert(&self) -> bool {
        self.options.mode == PutMode::Upsert
    }

    /// The same for other keys, each of which belongs to one of so many, and with 1 as the code of a value that was there;
    /// None when the groups are not for so many.
    fn spread(&self, owners: Vec<usize>, keys: usize) -> Option<Self> {
        let groups = match &self.groups {
            None => None,
            Some(groups) if groups.len() != keys => return None,
            Some(groups) => Some(
                owners
                    .iter()
                    .map(|owner| groups.get(*owner).copied().flatten())
                    .collect(),
            ),
        };
        Some(Self {
            options: self.options.clone(),
            groups,
            near: self.near,
            tells_existing: true,
        })
    }
}

impl RawPlan {
    /// Whether it has a group for each of so many keys, or none at all.
    pub(crate) fn fits(&self, keys: usize) -> bool {
        self.groups
            .as_ref()
            .is_none_or(|groups| groups.len() == keys)
    }

    /// The same for some of the keys of a call, which are to be at one of these places.
    pub(crate) fn part(&self, keys: Range<usize>, preferred: Vec<String>) -> Self {
        let groups = self.groups.as_ref();
        Self {
            options: PutOptions {
                preferred,
                ..self.options.clone()
            },
            groups: groups.map(|groups| groups[keys].to_vec()),
            near: false,
            tells_existing: self.tells_existing,
        }
    }

    /// The code of a put.
    pub(crate) fn code(&self, stored: Stored) -> i64 {
        i64::from(self.tells_existing && stored == Stored::Existed)
    }

    /// The options for the keys from `first` on, and how many of them these options are for: those of one group.
    pub(crate) fn run(&self, first: usize, keys: usize) -> (PutOptions, usize) {
        let mut options = self.options.clone();
        let Some(groups) = &self.groups else {
            return (options, keys - first);
        };
        let group = groups[first];
        options.group = group;
        let same = groups[first..].iter().take_while(|other| **other == group);
        (options, same.count())
    }
}
