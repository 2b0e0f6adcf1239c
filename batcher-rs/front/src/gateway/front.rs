//! A gateway's port, as the process that owns it sees it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use headrace_route::BadTable;
use parking_lot::Mutex;

use super::Gateway;
use crate::config::FrontConfig;
use crate::server::{Server, Shared};

/// A gateway's front: one port and the routes behind it.
pub struct GatewayFront {
    server: Mutex<Server>,
    shared: Arc<Shared>,
    address: SocketAddr,
    gateway: Arc<Gateway>,
}

impl GatewayFront {
    /// Binds the port.
    ///
    /// # Errors
    /// What the operating system said of the address.
    pub fn bind(config: FrontConfig) -> std::io::Result<Self> {
        let gateway = Gateway::new(&config);
        let server = Server::bind(config)?;
        Ok(Self {
            shared: Arc::clone(server.shared()),
            address: server.address(),
            server: Mutex::new(server),
            gateway,
        })
    }

    /// The address that callers reach.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves from now on.
    ///
    /// # Errors
    /// A thread could not be made, or this was called before.
    pub fn start(&self) -> std::io::Result<()> {
        let gateway = Arc::clone(&self.gateway);
        self.server
            .lock()
            .start(move |shared| gateway.service(shared))
    }

    /// Replaces the route table (JSON) as a whole. Requests under way keep their way; replicas that stay keep their
    /// connections, counters and health.
    ///
    /// # Errors
    /// What is wrong with the table; the old one stays.
    pub fn set_routes(&self, table: &str) -> Result<(), BadTable> {
        self.gateway.set_routes(table)
    }

    /// A worker said how many rows it has queued; the choice between replicas minds it. Unknown ids are ignored.
    pub fn report_queue(&self, replica: &str, rows: u64) {
        self.gateway.report_queue(replica, rows);
    }

    /// Everything counted, as JSON.
    pub fn statistics(&self) -> String {
        self.gateway.statistics(&self.shared)
    }

    /// Accepts nothing new and answers what is in flight. True when all of it was answered within `limit`.
    pub fn drain(&self, limit: Duration) -> bool {
        self.server.lock().drain(limit)
    }

    /// Ends every connection and every thread.
    pub fn stop(&self) {
        self.server.lock().stop();
    }
}
