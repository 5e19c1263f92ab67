/* Prints the words of a harness's language for libFuzzer's -dict, from the lists that the language is made of.
 * usage: dictionary NAME, the harness's */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "daemon/rpc/method.h"
#include "proto/jobs.h"
#include "proto/messages.h"

static void bytes(const void *word, size_t size)
{
    putchar('"');
    for (size_t i = 0; i < size; i++)
        printf("\\x%02x", ((const unsigned char *)word)[i]);
    printf("\"\n");
}

static void text(const char *word)
{
    bytes(word, strlen(word));
}

/* A whole request as it is sent, of zeros; and the byte by which the harness asks for it. */
static void wire(void)
{
    static unsigned char body[PACKET_BYTES_MAX];

    for (uint32_t opcode = 0; opcode < WIRE_OPCODES; opcode++) {
        const struct wire_row *row = wire_row(opcode);
        struct packet_header header = {.opcode = opcode, .serial = 1};
        if (!row)
            continue;
        memcpy(body, &header, sizeof(header));
        printf("# %s\n", row->name);
        bytes(body, row->request_size < 48 ? sizeof(header) + row->request_size : sizeof(header));
        for (unsigned char client = 0; opcode < 0x20 && client < 3; client++)
            bytes(&(unsigned char){(unsigned char)(opcode | client << 5)}, 1);
    }
}

static void worker(void)
{
    for (unsigned char opcode = 0; opcode < JOB_OPCODES; opcode++)
        if (job_row(opcode))
            printf("# %s\n", job_row(opcode)->name), bytes(&opcode, 1);
}

static void rpc(void)
{
    static const char *const more[] = {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"",
                                       "\"params\":{",
                                       "\"params\":[",
                                       "\"m\"",
                                       "\"w\"",
                                       "\"model:m\"",
                                       "\"group:g\"",
                                       "\"*\"",
                                       "\"host\"",
                                       "\"disk\"",
                                       "\"int8\"",
                                       "\"channel:0\"",
                                       "\"group:32\"",
                                       "0x100600000100000",
                                       "true",
                                       "null"};

    for (unsigned i = 0; i < METHODS; i++) {
        text(methods[i].name);
        for (const struct param *param = methods[i].params; param->name; param++)
            text(param->name);
    }
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
        text(more[i]);
}

static void config(void)
{
    for (unsigned i = 0; i < CONFIG_KEYS; i++) {
        text(config_options[i].key);
        if (*config_options[i].standard)
            text(config_options[i].standard);
    }
    text("[listener ");
    for (unsigned i = 0; i < LISTENER_KEYS; i++)
        text(config_listener_options[i].key);
}

static void tensors(void)
{
    for (unsigned i = 0; i < 64; i++)
        if (hbm_dtype_name(i))
            text(hbm_dtype_name(i));
    text("\"data_offsets\":[");
    text("\"dtype\":");
    text("\"shape\":[");
    text("__metadata__");
}

static void names(void)
{
    static const char *const known[] = {"model:", "group:", "id:", "~1000/", "~0/", "m/x", "m/g",
                                        "w",      "*",      "?",   "[a-",    "..",  "/"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        text(known[i]);
    for (unsigned i = 0; hbm_codec_name(i); i++)
        text(hbm_codec_name(i));
    text("channel:");
    text("group:32");
    text("0x");
}

static void gguf(void)
{
    static const char *const known[] = {"GGUF\x03", "general.alignment", "blk.0.attn_q.weight"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        text(known[i]);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (!strcmp(name, "wire"))
        wire();
    else if (!strcmp(name, "worker"))
        worker();
    else if (!strcmp(name, "rpc"))
        rpc();
    else if (!strcmp(name, "config"))
        config();
    else if (!strcmp(name, "safetensors"))
        tensors();
    else if (!strcmp(name, "gguf"))
        gguf();
    else if (!strcmp(name, "names"))
        names();
    return ferror(stdout) != 0; /* the others have no words */
}
