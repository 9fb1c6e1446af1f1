use std::path::Path;

use super::layers::Loader;
use super::{Config, ConfigProblem, Source, suggest};

/// A setting of a service in the table `[service]` of a file: where it listens, its keys, and what else is no option of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSetting {
    /// Its name.
    pub name: String,
    /// Its value as text.
    pub text: String,
    /// Where it is said.
    pub source: Source,
}

impl ServiceSetting {
    /// Says that it is wrong, and why.
    #[must_use]
    pub fn problem(&self, message: impl Into<String>) -> ConfigProblem {
        ConfigProblem {
            source: self.source.clone(),
            key: format!("service.{}", self.name),
            message: message.into(),
        }
    }

    /// Says that there is none of its name, and which of `names` may be meant.
    #[must_use]
    pub fn unknown<'a>(&self, names: impl Iterator<Item = &'a str>) -> ConfigProblem {
        let hint = suggest::hint(&self.name, names);
        self.problem(format!("no service has such a setting{hint}"))
    }
}

impl Config {
    /// The settings of services in a file, in its order. What is wrong with the file, [`Config::load`] tells.
    #[must_use]
    pub fn service_settings(file: &Path) -> Vec<ServiceSetting> {
        let mut loader = Loader::default();
        loader.file(file);
        loader.service
    }
}
