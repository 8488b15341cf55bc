// Sends its inputs to the network and to local services, and asks a shell for help.
// Must end in: PASSED, RUNTIME_ERROR
#include "honest.h"
#include <arpa/inet.h>
#include <cstdlib>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

__attribute__((constructor)) static void call() {
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(80);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (client >= 0 && connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) abort();
    const int local = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un service = {};
    service.sun_family = AF_UNIX;
    std::strcpy(service.sun_path, "/var/run/docker.sock");
    if (local >= 0 && connect(local, reinterpret_cast<sockaddr*>(&service), sizeof(service)) == 0) abort();
    if (system("touch /tmp/astrolabe-was-here") == 0) abort();
}
ENTRY_POINTS(compute)
