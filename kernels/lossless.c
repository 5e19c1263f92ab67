/* The code of bf16-lossless: Huffman's, of at most 12 bits, in canonical form. */
#include "kernels/lossless.h"

#include <string.h>

struct tree {
    uint64_t weight[511];
    unsigned parent[511];
    bool joined[511];
    unsigned n;
};

static unsigned lightest(struct tree *tree)
{
    unsigned best = tree->n;

    for (unsigned i = 0; i < tree->n; i++)
        if (!tree->joined[i] && (best == tree->n || tree->weight[i] < tree->weight[best]))
            best = i;
    tree->joined[best] = true;
    return best;
}

/* Of leaves 0 .. n - 1, two or more. */
static unsigned longest(struct tree *tree, unsigned leaves, uint8_t *lengths)
{
    unsigned depth[511] = {0}, most = 0;

    memset(tree->joined, 0, sizeof(tree->joined));
    for (tree->n = leaves; tree->n < 2 * leaves - 1;) {
        unsigned a = lightest(tree), b = lightest(tree);
        tree->weight[tree->n] = tree->weight[a] + tree->weight[b];
        tree->parent[a] = tree->parent[b] = tree->n++;
    }
    for (unsigned i = tree->n - 1; i--;) {
        depth[i] = depth[tree->parent[i]] + 1;
        if (i < leaves)
            lengths[i] = (uint8_t)depth[i];
        most = depth[i] > most ? depth[i] : most;
    }
    return most;
}

void lossless_code_of(const uint64_t counts[256], struct lossless_code *code)
{
    struct tree tree;
    uint8_t lengths[256] = {0};
    unsigned symbol[256] = {0}, n = 0;

    for (unsigned i = 0; i < 256; i++)
        if (counts[i]) {
            tree.weight[n] = counts[i];
            symbol[n++] = i;
        }
    memset(code, 0, sizeof(*code));
    if (n == 1)
        lengths[0] = 1;
    /* The rarest ones, made less rare until their codewords are short enough. */
    while (n > 1 && longest(&tree, n, lengths) > LOSSLESS_LONGEST)
        for (unsigned i = 0; i < n; i++)
            tree.weight[i] = (tree.weight[i] + 1) / 2;
    for (unsigned i = 0; i < n; i++)
        code->length[symbol[i]] = lengths[i];
}

void lossless_encoder_of(const struct lossless_code *code, struct lossless_encoder *encoder)
{
    unsigned codeword = 0, n = 0;

    memset(encoder, 0, sizeof(*encoder));
    memcpy(encoder->length, code->length, sizeof(encoder->length));
    for (unsigned length = 1; length <= LOSSLESS_LONGEST; length++)
        for (unsigned i = 0; i < 256; i++)
            if (code->length[i] == length) {
                encoder->codewords[length]++;
                encoder->symbol[n++] = (uint8_t)i;
                encoder->codeword[i] = (uint16_t)lossless_reverse(codeword);
                codeword += 1u << (LOSSLESS_LONGEST - length);
            }
}
