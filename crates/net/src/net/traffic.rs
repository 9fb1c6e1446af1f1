//! Reading from connections and writing to them.

use std::io::{self, IoSlice};

use slackwater_wait::now;

use super::{Alarm, Notice, Phase, entry};
use crate::outbox::GATHER;
use crate::{ConnId, End, Event, Net, Protocol};

impl Net {
    /// Reads once. A read that does not fill the buffer has emptied the socket, and the next byte makes a new edge.
    pub(super) fn read<P: Protocol>(&mut self, conn: ConnId, protocol: &mut P) {
        let mut buffer = std::mem::take(&mut self.read_buffer);
        self.counters.reads.add_alone(1);
        let outcome = match entry(&mut self.conns, conn) {
            Some(entry) => entry.stream.read(&mut buffer),
            None => return self.read_buffer = buffer,
        };
        match outcome {
            Ok(0) => self.end(conn, End::Eof),
            Ok(count) => {
                self.counters.bytes_in.add_alone(count as u64);
                protocol.handle(
                    self,
                    Event::Bytes {
                        conn,
                        bytes: &buffer[..count],
                    },
                );
                if let Some(entry) = entry(&mut self.conns, conn) {
                    // After the end one more read tells which end it is.
                    entry.readable = count == buffer.len() || entry.ended;
                }
                self.make_ready(conn);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Some(entry) = entry(&mut self.conns, conn) {
                    entry.readable = false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.make_ready(conn),
            Err(error) => self.end(conn, End::Failed(error)),
        }
        self.read_buffer = buffer;
    }

    pub(super) fn flush(&mut self, conn: ConnId) {
        let Some(entry) = entry(&mut self.conns, conn) else {
            return;
        };
        if let Some(mut outbox) = entry.outbox.take() {
            while !entry.blocked && !outbox.is_empty() {
                let mut slices: [IoSlice<'_>; GATHER] = [IoSlice::new(&[]); GATHER];
                let (count, offered) = outbox.gather(&mut slices);
                self.counters.writes.add_alone(1);
                match entry.stream.write(&slices[..count]) {
                    Ok(count) => {
                        self.counters.bytes_out.add_alone(count as u64);
                        outbox.advance(count, &mut self.spare);
                        entry.progressed = true;
                        entry.blocked = count < offered;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => entry.blocked = true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return self.end(conn, End::Failed(error)),
                }
            }
            match outbox.is_empty() {
                true => self.spare.take_back(outbox),
                false => entry.outbox = Some(outbox),
            }
        }
        let (queued, blocked) = (entry.queued_bytes(), entry.blocked || entry.raw.is_some());
        self.await_room(conn, blocked);
        let Some(entry) = super::entry(&mut self.conns, conn) else {
            return;
        };
        if queued == 0 && entry.phase == Phase::Lingering {
            return self.end(conn, End::Local);
        }
        if queued > 0 && entry.alarm.is_none() {
            entry.progressed = false;
            // From now, not from the beginning of the turn, which may be longer ago than a peer has time to read.
            let until = now() + self.limits.write_stall;
            entry.alarm = Some(self.wheel.set(until, Alarm::Stall(conn)));
        }
        if entry.call_when_drained && queued <= self.limits.low_mark_bytes {
            entry.call_when_drained = false;
            self.notices.push_back(Notice::Drained(conn));
        }
    }
}
