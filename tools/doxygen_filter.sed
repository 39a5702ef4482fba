# Turns our plain comments into Doxygen's: one above a declaration, one behind it, one that opens a file.
# Section rulers stay plain.
1s|^/\* |/** @file\n * |
/^\/\* ---/b
s|^\([[:space:]]*\)/\* |\1/** |
s|^\(.*[;,{(A-Za-z0-9_]\)\([[:space:]]\{1,\}\)/\* |\1\2/**< |
