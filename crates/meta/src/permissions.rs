//! Which requests a link may make.

use slackwater_wire::{ErrorCode, Permissions, Request, Tenant, TenantPermission};

/// Refuses what `permissions` do not cover. Nothing has been looked up before, so that the answer says nothing about the
/// objects of other tenants.
///
/// # Errors
/// The kind of right that is missing: [`ErrorCode::RoleNotPermitted`] or [`ErrorCode::TenantNotPermitted`].
pub(crate) fn check(permissions: &Permissions, request: &Request) -> Result<(), ErrorCode> {
    let role = match request {
        Request::Mount(mount) => permissions.node.covers(mount.node),
        Request::SetQuota { .. }
        | Request::DeleteQuota { .. }
        | Request::Quotas
        | Request::StartJob(_)
        | Request::QueryJob { .. }
        | Request::AwaitJob { .. }
        | Request::CancelJob { .. }
        | Request::Jobs => permissions.admin,
        Request::RemoveAll(remove) if remove.tenant.is_none() => permissions.admin,
        _ => permissions.client,
    };
    let tenants = match named(request) {
        Named::Nobody => true,
        Named::One(tenant) => permissions.tenants.covers(tenant),
        Named::All => permissions.tenants == TenantPermission::All,
    };
    match (role, tenants) {
        (false, _) => Err(ErrorCode::RoleNotPermitted),
        (true, false) => Err(ErrorCode::TenantNotPermitted),
        (true, true) => Ok(()),
    }
}

/// The tenants that a request is about.
enum Named<'a> {
    /// It is about guards and operations, which belong to a client, or segments, which belong to a node.
    Nobody,
    One(&'a Tenant),
    All,
}

fn named(request: &Request) -> Named<'_> {
    Named::One(match request {
        Request::Get(get) => &get.tenant,
        Request::Reads(reads) => &reads.tenant,
        Request::Exists(exists) => &exists.tenant,
        Request::PutStart(start) => &start.tenant,
        Request::PutEnd(end) => &end.tenant,
        Request::PutRevoke { tenant, .. }
        | Request::Suspect { tenant, .. }
        | Request::Describe { tenant, .. }
        | Request::SetQuota { tenant, .. }
        | Request::DeleteQuota { tenant } => tenant,
        Request::Remove(remove) => &remove.tenant,
        Request::RemoveMatching(remove) => &remove.tenant,
        Request::RemoveAll(remove) => match &remove.tenant {
            Some(tenant) => tenant,
            None => return Named::All,
        },
        Request::ReplicaClear(clear) => &clear.tenant,
        Request::List(list) => &list.tenant,
        Request::Quotas
        | Request::StartJob(_)
        | Request::QueryJob { .. }
        | Request::AwaitJob { .. }
        | Request::CancelJob { .. }
        | Request::Jobs => return Named::All,
        Request::GetEnd(_) | Request::Revoke { .. } | Request::Mount(_) => return Named::Nobody,
    })
}
