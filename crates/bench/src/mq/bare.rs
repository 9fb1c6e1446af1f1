//! The physical limit of the first part: a client that does nothing with its links but wait for them with epoll and
//! read, over a server that does nothing but write.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hdrhistogram::Histogram;
use rustix::event::epoll;
use rustix::net;

use super::BenchError;
use super::links::{MESSAGE_BYTES, Ticker, measure_windows, new_histogram, record};
use super::process::mq_error;
use crate::process::{descriptor_limit, resident_bytes, tell};

pub(super) fn serve(count: &str) -> Result<(), BenchError> {
    descriptor_limit();
    let count: usize = count.parse().map_err(mq_error)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(mq_error)?;
    tell(&format!(
        "listening {}",
        listener.local_addr().map_err(mq_error)?
    ))?;
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        let (link, _) = listener.accept().map_err(mq_error)?;
        link.set_nodelay(true).map_err(mq_error)?;
        links.push(link);
    }
    Ticker::start(move |random, body| {
        let mut message = [0; MESSAGE_BYTES];
        message[..body.len()].copy_from_slice(&body);
        let to = random.below(links.len() as u64) as usize;
        // A client that has gone ends the benchmark elsewhere.
        let _ = links[to].write_all(&message);
    })
    .obey()
}

pub(super) fn receive(address: &str, count: &str) -> Result<(), BenchError> {
    descriptor_limit();
    let (address, count): (SocketAddrV4, usize) = (
        address.parse().map_err(mq_error)?,
        count.parse().map_err(mq_error)?,
    );
    let before = resident_bytes();
    let began = std::time::Instant::now();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(mq_error)?;
    let flags = epoll::EventFlags::IN
        | epoll::EventFlags::OUT
        | epoll::EventFlags::RDHUP
        | epoll::EventFlags::ET;
    let mut links = Vec::with_capacity(count);
    for number in 0..count {
        let link = connect(address, number).map_err(mq_error)?;
        link.set_nonblocking(true).map_err(mq_error)?;
        epoll::add(
            &epoll,
            &link,
            epoll::EventData::new_u64(number as u64),
            flags,
        )
        .map_err(mq_error)?;
        links.push(link);
    }
    let (heard, calls) = (
        Arc::new(Mutex::new(new_histogram())),
        Arc::new(AtomicU64::new(0)),
    );
    let (seconds, bytes) = (
        began.elapsed().as_secs_f64(),
        resident_bytes().saturating_sub(before) as f64,
    );
    let (into, counting) = (Arc::clone(&heard), Arc::clone(&calls));
    // Ends with the process.
    std::thread::spawn(move || turn(&epoll, &mut links, &into, &counting));
    tell(&format!("ready {seconds} {}", bytes / count as f64))?;
    measure_windows(&heard, || calls.load(Ordering::Relaxed))
}

/// A port of one address is not enough for all links, so they come from several, and from others than ours.
fn connect(to: SocketAddrV4, number: usize) -> io::Result<TcpStream> {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
    net::bind(
        &socket,
        &SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, 1 + (number / 10_000) as u8), 0),
    )?;
    net::connect(&socket, &to)?;
    Ok(socket.into())
}

/// Waits and reads, one read for each link that has something.
fn turn(
    epoll: &impl std::os::fd::AsFd,
    links: &mut [TcpStream],
    heard: &Mutex<Histogram<u64>>,
    calls: &AtomicU64,
) {
    let (mut buffer, mut events) = (vec![0; 64 << 10], Vec::with_capacity(1024));
    loop {
        events.clear();
        let Ok(_) = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) else {
            continue;
        };
        calls.fetch_add(1 + events.len() as u64, Ordering::Relaxed);
        for event in &events {
            let count = links[event.data.u64() as usize]
                .read(&mut buffer)
                .unwrap_or(0);
            buffer[..count]
                .chunks_exact(MESSAGE_BYTES)
                .for_each(|message| record(heard, message));
        }
    }
}
