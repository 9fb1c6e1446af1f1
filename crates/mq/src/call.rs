use std::sync::Arc;

use slackwater_zmtp::{Message, PublicKey};
use thiserror::Error;

use crate::context::{Context, Origin};
use crate::frames::{self, KeptTag, REPLY};
use crate::{Answer, ConnectionId, Level, Mq, Refusal, RequestError, RequestOptions, SendError};

/// A reply to a command that is not a request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("only a request can be answered")]
pub struct NotARequest;

/// A command as its handler sees it.
pub struct Call<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) origin: &'a Arc<Origin>,
    pub(crate) level: Level,
    pub(crate) message: &'a Message,
    pub(crate) is_request: bool,
}

/// The permission to answer one request later, from any thread. When it is dropped without an answer, the peer is told that
/// the request failed.
pub struct Deferred {
    context: Arc<Context>,
    origin: Arc<Origin>,
    tag: Option<KeptTag>,
}

impl Call<'_> {
    /// The parts of the body.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.message.parts().skip(self.first())
    }

    /// Part `index` of the body.
    #[must_use]
    pub fn part(&self, index: usize) -> Option<&[u8]> {
        self.message.part(index + self.first())
    }

    /// The destination that reaches the caller.
    #[must_use]
    pub fn from(&self) -> ConnectionId {
        self.origin.connection
    }

    /// The caller's address.
    #[must_use]
    pub fn remote(&self) -> &str {
        &self.origin.remote
    }

    /// The caller's key.
    #[must_use]
    pub fn key(&self) -> Option<PublicKey> {
        self.origin.key
    }

    /// What the caller may do.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The tag of the request.
    #[must_use]
    pub fn tag(&self) -> Option<&[u8]> {
        self.message.part(1).filter(|_| self.is_request)
    }

    /// The message layer.
    #[must_use]
    pub fn mq(&self) -> Mq {
        Mq(Arc::clone(self.context))
    }

    /// Answers the request.
    ///
    /// # Errors
    /// [`NotARequest`] for a plain command.
    pub fn reply<P: AsRef<[u8]>>(
        &self,
        parts: impl IntoIterator<Item = P>,
    ) -> Result<(), NotARequest> {
        let tag = self.tag().ok_or(NotARequest)?;
        self.context
            .send_plainly(self.origin.link, frames::with_head(&[REPLY, tag], parts));
        Ok(())
    }

    /// Answers the request with a refusal; a peer that does not know the text of an extension is told `NOT_A_SERVICE_NODE` instead.
    ///
    /// # Errors
    /// [`NotARequest`] for a plain command.
    pub fn refuse(&self, refusal: Refusal) -> Result<(), NotARequest> {
        let tag = self.tag().ok_or(NotARequest)?;
        send_refusal(self.context, self.origin, refusal, Some(tag));
        Ok(())
    }

    /// Takes the answer over, for later.
    ///
    /// # Errors
    /// [`NotARequest`] for a plain command.
    pub fn defer(&self) -> Result<Deferred, NotARequest> {
        let tag = KeptTag::of(self.tag().ok_or(NotARequest)?);
        Ok(Deferred {
            context: Arc::clone(self.context),
            origin: Arc::clone(self.origin),
            tag: Some(tag),
        })
    }

    /// Leaves the answer to a worker, under the limits of a category, while it holds so many bytes. Where the queue is full the
    /// peer is told that this one is busy, as of a command of the category; a category that there is not answers nothing but that
    /// the request failed.
    ///
    /// # Errors
    /// [`NotARequest`] for a plain command.
    pub fn defer_to(
        &self,
        category: &str,
        bytes: usize,
        answer: impl FnOnce(Deferred) + Send + 'static,
    ) -> Result<(), NotARequest> {
        let tag = KeptTag::of(self.tag().ok_or(NotARequest)?);
        let (context, origin) = (Arc::clone(self.context), Arc::clone(self.origin));
        // Made by the worker: the drop of one tells the peer that the request failed.
        let task = move || {
            answer(Deferred {
                context,
                origin,
                tag: Some(tag),
            });
        };
        match self.mq().inject(category, bytes, task) {
            Ok(()) => Ok(()),
            Err(SendError::Full) => {
                self.context.metrics.rare(&self.context.metrics.busy);
                self.refuse(Refusal::Busy)
            }
            Err(SendError::Gone) => self.refuse(Refusal::Failed),
        }
    }

    /// Sends a command on the link that this one came on.
    pub fn send_back<P: AsRef<[u8]>>(&self, command: &str, parts: impl IntoIterator<Item = P>) {
        self.context.send_plainly(
            self.origin.link,
            frames::with_head(&[command.as_bytes()], parts),
        );
    }

    /// Sends a request on the link that this command came on.
    pub fn request_back<P: AsRef<[u8]>>(
        &self,
        command: &str,
        parts: impl IntoIterator<Item = P>,
        options: &RequestOptions,
        callback: impl FnOnce(Result<Answer, RequestError>) + Send + 'static,
    ) {
        self.mq().request(
            ConnectionId::Link(self.origin.link),
            command,
            parts,
            options,
            callback,
        );
    }

    fn first(&self) -> usize {
        1 + usize::from(self.is_request)
    }
}

impl Deferred {
    /// Answers.
    pub fn reply<P: AsRef<[u8]>>(mut self, parts: impl IntoIterator<Item = P>) {
        if let Some(tag) = self.tag.take() {
            self.context.send_plainly(
                self.origin.link,
                frames::with_head(&[REPLY, tag.bytes()], parts),
            );
        }
    }

    /// Answers with a refusal; a peer that does not know the text of an extension is told `NOT_A_SERVICE_NODE` instead.
    pub fn refuse(mut self, refusal: Refusal) {
        if let Some(tag) = self.tag.take() {
            send_refusal(&self.context, &self.origin, refusal, Some(tag.bytes()));
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if let Some(tag) = self.tag.take() {
            send_refusal(
                &self.context,
                &self.origin,
                Refusal::Failed,
                Some(tag.bytes()),
            );
        }
    }
}

/// Tells the peer why its command was not carried out, in words that it knows; counts the refusal in any case.
pub(crate) fn send_refusal(
    context: &Context,
    origin: &Origin,
    refusal: Refusal,
    tag: Option<&[u8]>,
) {
    context.metrics.count("refusal", refusal.text());
    if let Some(message) = frames::refuse(refusal, origin.extensions, b"", tag) {
        context.send_plainly(origin.link, message);
    }
}
