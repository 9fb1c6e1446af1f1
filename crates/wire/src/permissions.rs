use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{NodeId, Tenant};

/// What the other end of a link may ask of the master. It follows from the key that the link has proven, never from
/// the body of a message; see [`Permissions::FULL`] for links without keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// It may read, write and remove objects of its tenants.
    pub client: bool,
    /// It may set and list quotas, and remove the objects of all tenants.
    pub admin: bool,
    /// The node that it may mount and report for.
    pub node: NodePermission,
    /// The tenants that it may name.
    pub tenants: TenantPermission,
}

/// Which node a link may act for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePermission {
    /// None: it may not lend segments.
    None,
    /// This one.
    Only(NodeId),
    /// Any: there are no keys that could tell nodes apart.
    Any,
}

impl NodePermission {
    /// Whether it covers `node`.
    #[must_use]
    pub fn covers(self, node: NodeId) -> bool {
        match self {
            Self::None => false,
            Self::Only(own) => own == node,
            Self::Any => true,
        }
    }
}

/// Which tenants a link may name. Clones share the names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantPermission {
    /// Every tenant, those without objects too.
    All,
    /// These.
    Only(Arc<BTreeSet<Tenant>>),
}

impl TenantPermission {
    /// Whether it covers `tenant`.
    #[must_use]
    pub fn covers(&self, tenant: &Tenant) -> bool {
        match self {
            Self::All => true,
            Self::Only(tenants) => tenants.contains(tenant),
        }
    }
}

impl Permissions {
    /// Every right: of a caller inside the process, and of links on a loopback that is served without keys.
    pub const FULL: Self = Self {
        client: true,
        admin: true,
        node: NodePermission::Any,
        tenants: TenantPermission::All,
    };

    /// Those of a client of these tenants.
    pub fn client(tenants: impl IntoIterator<Item = Tenant>) -> Self {
        Self {
            client: true,
            admin: false,
            node: NodePermission::None,
            tenants: TenantPermission::Only(Arc::new(tenants.into_iter().collect())),
        }
    }

    /// Those of a node: it lends its own segments and reads and writes no objects.
    #[must_use]
    pub const fn node(node: NodeId) -> Self {
        Self {
            client: false,
            admin: false,
            node: NodePermission::Only(node),
            tenants: TenantPermission::All,
        }
    }

    /// Those of an operator, who may also do what clients may, for every tenant.
    #[must_use]
    pub const fn admin() -> Self {
        Self {
            client: true,
            admin: true,
            node: NodePermission::None,
            tenants: TenantPermission::All,
        }
    }
}
