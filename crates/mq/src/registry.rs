use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use slackwater_base::Map;
use slackwater_zmtp::PublicKey;
use thiserror::Error;

use crate::context::{Lookup, OnEvent};
use crate::resolve::{Resolve, by_the_system};
use crate::{Access, Address, Call, LinkEvent, Options, Queueing};

/// What carries a command out.
pub type Handler = Arc<dyn Fn(&Call<'_>) + Send + Sync>;

/// What carries out requests that came together, in the order in which they came.
pub(crate) type TogetherHandler = Arc<dyn Fn(&[Call<'_>]) + Send + Sync>;

/// Where the handlers of a category run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// On a worker; they may block.
    #[default]
    Worker,
    /// Where the message was read, without a hand-over: a promise that they never block and take microseconds.
    Inline,
}

/// A family of commands with common permissions and limits.
#[derive(Clone, Debug, Default)]
pub struct Category {
    /// The permissions that a caller needs.
    pub access: Access,
    /// Workers and queue.
    pub queueing: Queueing,
    /// The thread that runs the handlers: a worker or the loop.
    pub run: Run,
}

/// Why something cannot be registered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RegistryError {
    /// A category's name has 1 to 50 bytes and no dot.
    #[error("category name `{0}` must have 1 to 50 bytes and no dot")]
    CategoryName(String),
    /// The name is taken.
    #[error("`{0}` is registered already")]
    Taken(String),
    /// The category is unknown.
    #[error("no category `{0}`")]
    NoCategory(String),
    /// A command's name has at most 200 bytes with its category, and something behind the dot.
    #[error("command name `{0}` must have 1 to 200 bytes with its category")]
    CommandName(String),
    /// Requests are carried out together by the loop that read them alone.
    #[error("`{0}` is carried out together with others, so its category must run inline")]
    NotInline(String),
}

/// Categories, commands, aliases and callbacks, all fixed before the start.
pub struct Builder {
    pub(crate) options: Options,
    pub(crate) registry: Registry,
    pub(crate) lookup: Option<Lookup>,
    pub(crate) resolver: Resolve,
    pub(crate) on_event: Option<OnEvent>,
    pub(crate) tagged: Vec<crate::tagged::Planned>,
}

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) categories: Vec<(String, Category)>,
    commands: Map<Vec<u8>, Entry>,
    aliases: Map<Vec<u8>, Vec<u8>>,
}

pub(crate) struct Entry {
    pub(crate) category: usize,
    pub(crate) is_request: bool,
    pub(crate) carried: Carried,
}

/// How a command is carried out.
pub(crate) enum Carried {
    /// By itself.
    Alone(Handler),
    /// With all that its loop has read since it last looked.
    Together(TogetherHandler),
}

const CATEGORY_BYTES: usize = 50;
const COMMAND_BYTES: usize = 200;

impl Builder {
    /// A message layer with these options and no commands.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            registry: Registry::default(),
            lookup: None,
            resolver: Arc::new(by_the_system),
            on_event: None,
            tagged: Vec::new(),
        }
    }

    /// Adds a category.
    ///
    /// # Errors
    /// When the name is no name or taken.
    pub fn category(&mut self, name: &str, category: Category) -> Result<&mut Self, RegistryError> {
        if name.is_empty() || name.len() > CATEGORY_BYTES || name.contains('.') {
            return Err(RegistryError::CategoryName(name.into()));
        }
        if self.registry.find_category(name).is_some() {
            return Err(RegistryError::Taken(name.into()));
        }
        self.registry.categories.push((name.into(), category));
        Ok(self)
    }

    /// Adds `category.command`, which is not answered.
    ///
    /// # Errors
    /// When the name is no name or taken, or the category unknown.
    pub fn command(
        &mut self,
        name: &str,
        handler: impl Fn(&Call<'_>) + Send + Sync + 'static,
    ) -> Result<&mut Self, RegistryError> {
        self.add(name, false, Carried::Alone(Arc::new(handler)))
    }

    /// Adds `category.command`, which is answered.
    ///
    /// # Errors
    /// As [`Builder::command`].
    pub fn request_command(
        &mut self,
        name: &str,
        handler: impl Fn(&Call<'_>) + Send + Sync + 'static,
    ) -> Result<&mut Self, RegistryError> {
        self.add(name, true, Carried::Alone(Arc::new(handler)))
    }

    /// Adds `category.command`, which is answered, and whose handler gets at once what a loop has read of it, of however many
    /// links, up to 16 requests: for work that is cheaper together. Nothing that came later on a link is carried out before it,
    /// and a lone request waits for no other.
    ///
    /// # Errors
    /// As [`Builder::command`], and when the category does not run inline.
    pub fn request_command_together(
        &mut self,
        name: &str,
        handler: impl Fn(&[Call<'_>]) + Send + Sync + 'static,
    ) -> Result<&mut Self, RegistryError> {
        self.add(name, true, Carried::Together(Arc::new(handler)))
    }

    /// Lets callers say `from` for `to`; applied before look-up and the check of permissions.
    ///
    /// # Errors
    /// When `from` is a command or another alias.
    pub fn alias(&mut self, from: &str, to: &str) -> Result<&mut Self, RegistryError> {
        let registry = &mut self.registry;
        if registry.commands.contains_key(from.as_bytes())
            || registry.aliases.contains_key(from.as_bytes())
        {
            return Err(RegistryError::Taken(from.into()));
        }
        registry.aliases.insert(from.into(), to.into());
        Ok(self)
    }

    /// How to find a node by its key when a send has no link to it and no hint. Runs on the sending thread.
    pub fn node_lookup(
        &mut self,
        lookup: impl Fn(&PublicKey) -> Option<Address> + Send + Sync + 'static,
    ) -> &mut Self {
        self.lookup = Some(Arc::new(lookup));
        self
    }

    /// How to find the addresses of a host and a port; the operating system's resolver when not set. Runs on workers that
    /// do nothing else, so it may block; addresses are tried in its order.
    pub fn resolver(
        &mut self,
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> &mut Self {
        self.resolver = Arc::new(resolve);
        self
    }

    /// Called when a link comes up, goes down or is refused. Runs on a worker.
    pub fn on_link(&mut self, hear: impl Fn(LinkEvent) + Send + Sync + 'static) -> &mut Self {
        self.on_event = Some(Arc::new(hear));
        self
    }

    fn add(
        &mut self,
        name: &str,
        is_request: bool,
        carried: Carried,
    ) -> Result<&mut Self, RegistryError> {
        let bad = || RegistryError::CommandName(name.into());
        let (category, command) = name.split_once('.').ok_or_else(bad)?;
        if command.is_empty() || name.len() > COMMAND_BYTES {
            return Err(bad());
        }
        let registry = &mut self.registry;
        let Some(category) = registry.find_category(category) else {
            return Err(RegistryError::NoCategory(category.into()));
        };
        let runs_inline = registry.category(category).run == Run::Inline;
        if matches!(carried, Carried::Together(_)) && !runs_inline {
            return Err(RegistryError::NotInline(name.into()));
        }
        if registry.commands.contains_key(name.as_bytes())
            || registry.aliases.contains_key(name.as_bytes())
        {
            return Err(RegistryError::Taken(name.into()));
        }
        registry.commands.insert(
            name.into(),
            Entry {
                category,
                is_request,
                carried,
            },
        );
        Ok(self)
    }
}

impl Registry {
    /// The command of this name or alias.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&Entry> {
        if name.len() > COMMAND_BYTES {
            return None;
        }
        let name = self.aliases.get(name).map_or(name, Vec::as_slice);
        self.commands.get(name)
    }

    pub(crate) fn find_category(&self, name: &str) -> Option<usize> {
        self.categories.iter().position(|(known, _)| known == name)
    }

    pub(crate) fn category(&self, index: usize) -> &Category {
        &self.categories[index].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_aliases_found() {
        let mut builder = Builder::new(Options::default());
        assert_eq!(
            builder.category("a.b", Category::default()).err(),
            Some(RegistryError::CategoryName("a.b".into()))
        );
        assert!(
            builder
                .category(&"x".repeat(51), Category::default())
                .is_err()
        );
        builder.category("kv", Category::default()).unwrap();
        assert_eq!(
            builder.category("kv", Category::default()).err(),
            Some(RegistryError::Taken("kv".into()))
        );
        builder
            .command("kv.put", |_| {})
            .unwrap()
            .alias("store.put", "kv.put")
            .unwrap();
        assert_eq!(
            builder.command("kv.put", |_| {}).err(),
            Some(RegistryError::Taken("kv.put".into()))
        );
        assert_eq!(
            builder.command("no.put", |_| {}).err(),
            Some(RegistryError::NoCategory("no".into()))
        );
        assert_eq!(
            builder.command("kv", |_| {}).err(),
            Some(RegistryError::CommandName("kv".into()))
        );
        assert_eq!(
            builder.command("kv.", |_| {}).err(),
            Some(RegistryError::CommandName("kv.".into()))
        );
        let long = format!("kv.{}", "x".repeat(198));
        assert!(builder.command(&long, |_| {}).is_err());
        assert!(
            builder.registry.find(b"store.put").is_some()
                && builder.registry.find(b"kv.get").is_none()
        );
        assert!(builder.registry.find(long.as_bytes()).is_none());
    }
}
