/*
 * The C half of crate `fabric`: one endpoint of libfabric for reliable messages, with its queue of
 * completions, its table of peers and all memory that the library may touch at any time.
 *
 * Most entry points of libfabric are inline functions of its header files, so C calls them. What is
 * exported here is called by `endpoint.rs` alone.
 *
 * The rules that it keeps stand in the head of `lib.rs`.
 */

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

/* The interface that is asked for. A newer library keeps to what it promised then. */
#define PF_VERSION FI_VERSION(1, 14)
/* Bytes of the largest message. Software providers carry so many without a transfer in several
 * steps, which a peer that dies would leave unfinished. `MESSAGE_BYTES_MAX` of `endpoint.rs`. */
#define PF_MESSAGE_BYTES_MAX 4096
/* Messages on their way out at most, and messages that may come between two looks. */
#define PF_SENDS 256
#define PF_RECEIVES 512
/* Completions that are read at once. */
#define PF_ENTRIES 32

/* Libraries that libfabric is linked with take these signals as soon as they are loaded: PSM of
 * Debian 12 writes a file and ends the process by itself. Whoever wants the signals later would only
 * be called before that. So the handlers go again: this runs behind those of the libraries, before
 * main. */
__attribute__((constructor)) static void pf_take_signals_back(void)
{
    const int taken[] = {SIGINT, SIGTERM, SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        struct sigaction now;
        if (sigaction(taken[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            signal(taken[i], SIG_DFL);
    }
}

/* Memory for one message. The library may keep notes in `context`. */
struct pf_slot {
    struct fi_context2 context;
    uint64_t peer;
    struct pf_slot *next;
    int is_send;
    _Alignas(64) unsigned char bytes[PF_MESSAGE_BYTES_MAX];
};

struct pf_endpoint {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *peers;
    struct fid_cq *queue;
    struct fid_ep *endpoint;
    struct pf_slot *slots;
    /* Of messages to send. */
    struct pf_slot *free;
    /* To be given to the library for messages that come. */
    struct pf_slot *unposted;
    /* Completions that were read and not looked at. */
    struct fi_cq_msg_entry entries[PF_ENTRIES];
    size_t next, count;
    int wait_fd;
    /* Messages on their way out. */
    size_t under_way;
};

static int is_internet(uint32_t format)
{
    return format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6;
}

static struct fi_info *pf_hints(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    return hints;
}

/* Finds the provider. One that lives in the internet is asked again, for the interface of `node`. */
static int pf_find(const char *provider, const char *node, struct fi_info **found)
{
    struct fi_info *hints = pf_hints(provider);
    if (!hints)
        return -FI_ENOMEM;
    int result = fi_getinfo(PF_VERSION, NULL, NULL, 0, hints, found);
    if (!result && is_internet((*found)->addr_format)) {
        fi_freeinfo(*found);
        *found = NULL;
        result = fi_getinfo(PF_VERSION, node, NULL, FI_SOURCE, hints, found);
    }
    fi_freeinfo(hints);
    return result;
}

/* Gives as many slots to the library as it takes. */
static int pf_post(struct pf_endpoint *e)
{
    while (e->unposted) {
        struct pf_slot *slot = e->unposted;
        ssize_t result = fi_recv(e->endpoint, slot->bytes, PF_MESSAGE_BYTES_MAX, NULL,
                                 FI_ADDR_UNSPEC, &slot->context);
        if (result == -FI_EAGAIN)
            return 0;
        if (result)
            return (int)result;
        e->unposted = slot->next;
    }
    return 0;
}

static int pf_make_slots(struct pf_endpoint *e)
{
    size_t bytes = (PF_SENDS + PF_RECEIVES) * sizeof(struct pf_slot);
    e->slots = aligned_alloc(64, bytes);
    if (!e->slots)
        return -FI_ENOMEM;
    memset(e->slots, 0, bytes);
    for (size_t i = 0; i < PF_SENDS + PF_RECEIVES; i++) {
        struct pf_slot *slot = &e->slots[i];
        slot->is_send = i < PF_SENDS;
        struct pf_slot **list = slot->is_send ? &e->free : &e->unposted;
        slot->next = *list;
        *list = slot;
    }
    return 0;
}

static int pf_make_queue(struct pf_endpoint *e)
{
    struct fi_cq_attr attr = {
        .size = PF_SENDS + PF_RECEIVES,
        .format = FI_CQ_FORMAT_MSG,
        .wait_obj = FI_WAIT_FD,
    };
    int result = fi_cq_open(e->domain, &attr, &e->queue, NULL);
    if (!result) {
        result = fi_control(&e->queue->fid, FI_GETWAIT, &e->wait_fd);
        if (!result)
            return 0;
        fi_close(&e->queue->fid);
        e->queue = NULL;
    }
    e->wait_fd = -1;
    attr.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(e->domain, &attr, &e->queue, NULL);
}

static void pf_close_one(struct fid *fid)
{
    if (fid)
        fi_close(fid);
}

void pf_close(struct pf_endpoint *e)
{
    pf_close_one(e->endpoint ? &e->endpoint->fid : NULL);
    pf_close_one(e->queue ? &e->queue->fid : NULL);
    pf_close_one(e->peers ? &e->peers->fid : NULL);
    pf_close_one(e->domain ? &e->domain->fid : NULL);
    pf_close_one(e->fabric ? &e->fabric->fid : NULL);
    if (e->info)
        fi_freeinfo(e->info);
    free(e->slots);
    free(e);
}

/* Opens an endpoint. NULL: `why` says in words what failed. */
struct pf_endpoint *pf_open(const char *provider, const char *node, char *why, size_t why_bytes)
{
    struct pf_endpoint *e = calloc(1, sizeof(*e));
    if (!e) {
        snprintf(why, why_bytes, "no memory");
        return NULL;
    }
    e->wait_fd = -1;
    struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC};
    const char *step = "it offers no reliable messages here";
    int result = pf_find(provider, node, &e->info);
    if (!result) {
        /* Some providers make memory ready for all that they may hold, at once. */
        if (e->info->tx_attr->size > PF_SENDS)
            e->info->tx_attr->size = PF_SENDS;
        if (e->info->rx_attr->size > PF_RECEIVES)
            e->info->rx_attr->size = PF_RECEIVES;
        step = "its fabric does not open";
        result = fi_fabric(e->info->fabric_attr, &e->fabric, NULL);
    }
    if (!result) {
        step = "its domain does not open";
        result = fi_domain(e->fabric, e->info, &e->domain, NULL);
    }
    if (!result) {
        step = "its table of peers does not open";
        result = fi_av_open(e->domain, &av_attr, &e->peers, NULL);
    }
    if (!result) {
        step = "its queue does not open";
        result = pf_make_queue(e);
    }
    if (!result) {
        step = "its endpoint does not open";
        result = fi_endpoint(e->domain, e->info, &e->endpoint, NULL);
    }
    if (!result)
        result = fi_ep_bind(e->endpoint, &e->peers->fid, 0);
    if (!result)
        result = fi_ep_bind(e->endpoint, &e->queue->fid, FI_TRANSMIT | FI_RECV);
    if (!result)
        result = fi_enable(e->endpoint);
    if (!result) {
        step = "it takes no memory for messages";
        result = pf_make_slots(e);
    }
    if (!result)
        result = pf_post(e);
    if (!result)
        return e;
    snprintf(why, why_bytes, "%s: %s", step, fi_strerror(-result));
    pf_close(e);
    return NULL;
}

/* A descriptor that is readable when there is something to do; -1 if the provider has none. */
int pf_wait_fd(const struct pf_endpoint *e)
{
    return e->wait_fd;
}

/* Whether names of peers are text that ends with a zero. Others have the length of the own name,
 * and begin with the same bytes for the family of addresses. */
int pf_names_are_text(const struct pf_endpoint *e)
{
    return e->info->addr_format == FI_ADDR_STR;
}

/* Copies the own name. Its length, or 0 if it does not fit. */
size_t pf_name(struct pf_endpoint *e, void *into, size_t room)
{
    size_t bytes = room;
    return fi_getname(&e->endpoint->fid, into, &bytes) ? 0 : bytes;
}

/* Takes a peer into the table. 0, or a negative error. */
int pf_add_peer(struct pf_endpoint *e, const void *name, uint64_t *peer)
{
    fi_addr_t address = FI_ADDR_UNSPEC;
    int count = fi_av_insert(e->peers, name, 1, &address, 0, NULL);
    if (count < 0)
        return count;
    if (count != 1 || address == FI_ADDR_NOTAVAIL)
        return -FI_EINVAL;
    *peer = address;
    return 0;
}

void pf_remove_peer(struct pf_endpoint *e, uint64_t peer)
{
    fi_addr_t address = peer;
    fi_av_remove(e->peers, &address, 1, 0);
}

/* Sends two parts as one message. 0; -EAGAIN: not now; another negative error. */
int pf_send(struct pf_endpoint *e, uint64_t peer, const void *head, size_t head_bytes,
            const void *data, size_t data_bytes)
{
    struct pf_slot *slot = e->free;
    if (head_bytes > PF_MESSAGE_BYTES_MAX || data_bytes > PF_MESSAGE_BYTES_MAX - head_bytes)
        return -EMSGSIZE;
    if (!slot)
        return -EAGAIN;
    memcpy(slot->bytes, head, head_bytes);
    if (data_bytes)
        memcpy(slot->bytes + head_bytes, data, data_bytes);
    slot->peer = peer;
    ssize_t result =
        fi_send(e->endpoint, slot->bytes, head_bytes + data_bytes, NULL, peer, &slot->context);
    if (result)
        return result == -FI_EAGAIN ? -EAGAIN : (int)result;
    e->free = slot->next;
    e->under_way++;
    return 0;
}

static struct pf_slot *pf_slot_of(void *context)
{
    return (struct pf_slot *)((char *)context - offsetof(struct pf_slot, context));
}

/* Puts the slot of an operation that has ended where it belongs. */
static void pf_give_back(struct pf_endpoint *e, struct pf_slot *slot)
{
    struct pf_slot **list = slot->is_send ? &e->free : &e->unposted;
    slot->next = *list;
    *list = slot;
    e->under_way -= slot->is_send ? 1 : 0;
}

/* Takes the next news. 0 and more: a message of that length, copied to `into`, which has room for
 * the largest. -EAGAIN: there is none. -ECONNRESET: a message to `*peer` was not delivered. Another
 * negative error: the endpoint is broken. */
ssize_t pf_take(struct pf_endpoint *e, void *into, uint64_t *peer)
{
    for (;;) {
        if (e->next == e->count) {
            int posted = pf_post(e);
            if (posted)
                return posted;
            ssize_t count = fi_cq_read(e->queue, e->entries, PF_ENTRIES);
            if (count == -FI_EAVAIL) {
                struct fi_cq_err_entry error = {0};
                ssize_t result = fi_cq_readerr(e->queue, &error, 0);
                if (result == -FI_EAGAIN)
                    return -EAGAIN;
                if (result < 0)
                    return result;
                if (!error.op_context)
                    return -EIO;
                struct pf_slot *slot = pf_slot_of(error.op_context);
                pf_give_back(e, slot);
                if (slot->is_send) {
                    *peer = slot->peer;
                    return -ECONNRESET;
                }
                /* A message that is too long, or one cut off, is none. */
                continue;
            }
            if (count == -FI_EAGAIN || count == 0)
                return -EAGAIN;
            if (count < 0)
                return count;
            e->next = 0;
            e->count = (size_t)count;
        }
        struct fi_cq_msg_entry *entry = &e->entries[e->next++];
        struct pf_slot *slot = pf_slot_of(entry->op_context);
        size_t bytes = entry->len;
        if (!slot->is_send) {
            if (bytes > PF_MESSAGE_BYTES_MAX)
                bytes = PF_MESSAGE_BYTES_MAX;
            memcpy(into, slot->bytes, bytes);
        }
        pf_give_back(e, slot);
        if (!slot->is_send)
            return (ssize_t)bytes;
    }
}

/* Messages on their way out, whose memory the library still has. */
size_t pf_under_way(const struct pf_endpoint *e)
{
    return e->under_way;
}

/* Whether the descriptor will be readable at the next news. Otherwise there are some already. */
int pf_may_sleep(struct pf_endpoint *e)
{
    struct fid *queue = &e->queue->fid;
    return e->wait_fd >= 0 && e->next == e->count && !e->unposted
        && fi_trywait(e->fabric, &queue, 1) == FI_SUCCESS;
}
