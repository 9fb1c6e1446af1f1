use slackwater_wire::{QuotaState, Reply, Request};

use crate::client::{Call, refusal};
use crate::waits::here;
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
        here(self.call(options).set_quota(memory_bytes, disk_bytes))
    }

    /// Forgets the quota of the tenant in `options`, which has no objects.
    ///
    /// # Errors
    /// When the tenant has no quota, or objects; as [`Client::set_quota`].
    pub fn delete_quota(&self, options: &CallOptions) -> Result<(), ClientError> {
        here(self.call(options).delete_quota())
    }

    /// Quota and use of every tenant that has either, whichever tenant `options` names.
    ///
    /// # Errors
    /// When the key has not the right of an operator; the deadline; a cancellation.
    pub fn quotas(&self, options: &CallOptions) -> Result<Vec<QuotaState>, ClientError> {
        here(self.call(options).quotas())
    }
}

impl Call<'_> {
    pub(crate) async fn set_quota(
        &self,
        memory_bytes: u64,
        disk_bytes: u64,
    ) -> Result<(), ClientError> {
        let request = Request::SetQuota {
            tenant: self.options.tenant.clone(),
            memory_bytes,
            disk_bytes,
        };
        self.have_quota(request).await
    }

    pub(crate) async fn delete_quota(&self) -> Result<(), ClientError> {
        let tenant = self.options.tenant.clone();
        self.have_quota(Request::DeleteQuota { tenant }).await
    }

    pub(crate) async fn quotas(&self) -> Result<Vec<QuotaState>, ClientError> {
        match self.ask("quotas", Request::Quotas).await? {
            Reply::Quotas(states) => Ok(states),
            reply => Err(refusal(&reply)),
        }
    }

    async fn have_quota(&self, request: Request) -> Result<(), ClientError> {
        match self.ask("a quota", request).await? {
            Reply::Done => Ok(()),
            reply => Err(refusal(&reply)),
        }
    }
}
