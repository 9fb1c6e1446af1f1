use slackwater_wire::{Description, Key, List, QuotaState};

use crate::{
    CallOptions, Client, ClientError, GetOptions, PutOptions, RemoveOptions, Stored, View, Waits,
};

/// The calls of a client as futures, which may be many at a time on one thread: a call under way is its future and nothing else.
///
/// A call has what it needs, the memory that it reads into among it. Its first poll sends what it asks; every poll takes little
/// time but for the checksums of what has come, and for copies of up to 64 KiB. Nothing but its caller bounds how many there are.
///
/// One that is dropped before its end ends what it had under way, and waits for that; to end one softly, cancel it by its options
/// and go on awaiting it. A waker must not poll: it may be called while locks of the client are held.
#[derive(Clone, Debug)]
pub struct Calls {
    client: Client,
    waits: Waits,
}

impl Client {
    /// Its calls as futures. Those that wait as [`Waits::Thread`] end with their first poll: for callers that have one way for
    /// both.
    #[must_use]
    pub fn calls(&self, waits: Waits) -> Calls {
        Calls {
            client: self.clone(),
            waits,
        }
    }
}

impl Calls {
    /// As [`Client::put_batch`], with the entries back.
    pub async fn put_batch<K, V>(
        &self,
        entries: Vec<(K, V)>,
        options: PutOptions,
    ) -> (Vec<Result<Stored, ClientError>>, Vec<(K, V)>)
    where
        K: AsRef<[u8]> + Send + Sync,
        V: AsRef<[u8]> + Send + Sync + 'static,
    {
        let slices = entries
            .iter()
            .map(|(key, value)| (key.as_ref(), value.as_ref()));
        let slices: Vec<(&[u8], &[u8])> = slices.collect();
        let call = self.client.call_in(&options.call, self.waits);
        let stored = call.write(&slices, &options).await;
        (stored, entries)
    }

    /// As [`Client::get_batch`].
    pub async fn get_batch<K: AsRef<[u8]> + Send + Sync>(
        &self,
        keys: Vec<K>,
        options: GetOptions,
    ) -> Vec<Result<Option<Vec<u8>>, ClientError>> {
        let call = self.client.call_in(&options.call, self.waits);
        call.get(&slices(&keys), &options).await
    }

    /// As [`Client::get_batch_into`], into the front of memory that comes back with the results.
    pub async fn get_batch_into<K, B>(
        &self,
        keys: Vec<K>,
        mut buffers: Vec<B>,
        options: GetOptions,
    ) -> (Vec<Result<Option<usize>, ClientError>>, Vec<B>)
    where
        K: AsRef<[u8]> + Send + Sync,
        B: AsMut<[u8]> + Send + 'static,
    {
        let (count, given) = (keys.len(), buffers.len());
        if count != given {
            let wrong = ClientError::BufferCount {
                keys: count,
                buffers: given,
            };
            return (vec![Err(wrong); count], buffers);
        }
        let call = self.client.call_in(&options.call, self.waits);
        let into = buffers.iter_mut().map(AsMut::as_mut);
        let read = call.get_into(&slices(&keys), into, &options).await;
        (read, buffers)
    }

    /// As [`Client::view_batch`].
    pub async fn view_batch<K: AsRef<[u8]> + Send + Sync>(
        &self,
        keys: Vec<K>,
        options: GetOptions,
    ) -> Vec<Result<Option<View>, ClientError>> {
        let call = self.client.call_in(&options.call, self.waits);
        call.view(&slices(&keys), &options).await
    }

    /// As [`Client::exists`].
    ///
    /// # Errors
    /// As [`Client::exists`].
    pub async fn exists<K: AsRef<[u8]> + Send + Sync>(
        &self,
        keys: Vec<K>,
        options: CallOptions,
    ) -> Result<Vec<bool>, ClientError> {
        let call = self.client.call_in(&options, self.waits);
        call.exists(&slices(&keys)).await
    }

    /// As [`Client::remove`].
    pub async fn remove<K: AsRef<[u8]> + Send + Sync>(
        &self,
        keys: Vec<K>,
        options: RemoveOptions,
    ) -> Vec<Result<(), ClientError>> {
        let call = self.client.call_in(&options.call, self.waits);
        call.remove(&slices(&keys), options.force).await
    }

    /// As [`Client::remove_matching`].
    ///
    /// # Errors
    /// As [`Client::remove_matching`].
    pub async fn remove_matching(
        &self,
        pattern: String,
        options: RemoveOptions,
    ) -> Result<u64, ClientError> {
        let call = self.client.call_in(&options.call, self.waits);
        call.remove_matching(pattern, options.force).await
    }

    /// As [`Client::remove_all`].
    ///
    /// # Errors
    /// As [`Client::remove_all`].
    pub async fn remove_all(&self, options: RemoveOptions) -> Result<u64, ClientError> {
        let call = self.client.call_in(&options.call, self.waits);
        call.remove_all(options.force).await
    }

    /// As [`Client::list_up_to`].
    ///
    /// # Errors
    /// As [`Client::list_up_to`].
    pub async fn list_up_to(
        &self,
        list: List,
        limit: usize,
        options: CallOptions,
    ) -> Result<(Vec<Key>, bool), ClientError> {
        self.client.list_in(list, limit, &options, self.waits).await
    }

    /// As [`Client::stat`].
    ///
    /// # Errors
    /// As [`Client::stat`].
    pub async fn stat<K: AsRef<[u8]> + Send + Sync>(
        &self,
        key: K,
        options: CallOptions,
    ) -> Result<Option<Description>, ClientError> {
        let call = self.client.call_in(&options, self.waits);
        call.stat(key.as_ref()).await
    }

    /// As [`Client::set_quota`].
    ///
    /// # Errors
    /// As [`Client::set_quota`].
    pub async fn set_quota(
        &self,
        memory_bytes: u64,
        disk_bytes: u64,
        options: CallOptions,
    ) -> Result<(), ClientError> {
        let call = self.client.call_in(&options, self.waits);
        call.set_quota(memory_bytes, disk_bytes).await
    }

    /// As [`Client::delete_quota`].
    ///
    /// # Errors
    /// As [`Client::delete_quota`].
    pub async fn delete_quota(&self, options: CallOptions) -> Result<(), ClientError> {
        let call = self.client.call_in(&options, self.waits);
        call.delete_quota().await
    }

    /// As [`Client::quotas`].
    ///
    /// # Errors
    /// As [`Client::quotas`].
    pub async fn quotas(&self, options: CallOptions) -> Result<Vec<QuotaState>, ClientError> {
        let call = self.client.call_in(&options, self.waits);
        call.quotas().await
    }
}

fn slices<K: AsRef<[u8]>>(keys: &[K]) -> Vec<&[u8]> {
    keys.iter().map(AsRef::as_ref).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tasks may be polled on any thread.
    #[expect(dead_code, reason = "it is compiled")]
    fn calls_go_from_thread_to_thread(calls: &Calls, keys: Vec<Vec<u8>>) {
        fn check(_: impl Send) {}
        let entries = keys.iter().map(|key| (key.clone(), key.clone())).collect();
        check(calls.put_batch::<Vec<u8>, Vec<u8>>(entries, PutOptions::default()));
        check(calls.get_batch(keys.clone(), GetOptions::default()));
        check(calls.get_batch_into(keys.clone(), keys.clone(), GetOptions::default()));
        check(calls.view_batch(keys.clone(), GetOptions::default()));
        check(calls.exists(keys.clone(), CallOptions::default()));
        check(calls.remove(keys.clone(), RemoveOptions::default()));
        check(calls.remove_matching(String::new(), RemoveOptions::default()));
        check(calls.remove_all(RemoveOptions::default()));
        check(calls.stat(Vec::new(), CallOptions::default()));
        check(calls.set_quota(1, 1, CallOptions::default()));
        check(calls.delete_quota(CallOptions::default()));
        check(calls.quotas(CallOptions::default()));
    }
}
