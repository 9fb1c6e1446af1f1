use slackwater_wire::{QuotaState, Reply, Request};

use crate::client::refusal;
use crate::{CallOptions, Client, ClientError};

/// Quotas of tenants, which need the right of an operator.
impl Client {
    /// Sets or changes the byte quota of the tenant in `options`.
    ///
    /// # Errors
    /// When the key has not that right, or tenants are not told apart; the deadline; a cancellation.
    pub fn set_quota(
        &self,
        memory_bytes: u64,
        disk_bytes: u64,
        options: &CallOptions,
    ) -> Result<(), ClientError> {
        let request = Request::SetQuota {
            tenant: options.tenant.clone(),
            memory_bytes,
            disk_bytes,
        };
        match self.call(options).ask("a quota", request)? {
            Reply::Done => Ok(()),
            reply => Err(refusal(&reply)),
        }
    }

    /// Forgets the quota of the tenant in `options`, which has no objects.
    ///
    /// # Errors
    /// When the tenant has no quota, or objects; as [`Client::set_quota`].
    pub fn delete_quota(&self, options: &CallOptions) -> Result<(), ClientError> {
        let request = Request::DeleteQuota {
            tenant: options.tenant.clone(),
        };
        match self.call(options).ask("a quota", request)? {
            Reply::Done => Ok(()),
            reply => Err(refusal(&reply)),
        }
    }

    /// Quota and use of every tenant that has either, whichever tenant `options` names.
    ///
    /// # Errors
    /// When the key has not the right of an operator; the deadline; a cancellation.
    pub fn quotas(&self, options: &CallOptions) -> Result<Vec<QuotaState>, ClientError> {
        match self.call(options).ask("quotas", Request::Quotas)? {
            Reply::Quotas(states) => Ok(states),
            reply => Err(refusal(&reply)),
        }
    }
}
